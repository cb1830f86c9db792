// Elements, and formatting of text and numbers. Token text is untrusted and only inserted by textContent.

const WORDS = { accepted: "accepted", rejected: "rejected", unreached: "not reached", bonus: "bonus token" }
const LOOKUP = "chance by lookup"
const SVG_NS = "http://www.w3.org/2000/svg"

function visible(text) {
  if (text === "") return "∅"
  return text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥")
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
}

function isolated(text) {
  // Right-to-left text must not reorder the sentence around it.
  return /[\u0590-\u08ff\u200f-\u202e\ufb1d-\ufefc]/.test(text) ? `\u2068${text}\u2069` : text
}

function foundAt(step, node) {
  return step.found_at?.[node] ?? null
}

function isDrafted(step, node) {
  const found = foundAt(step, node)
  return node > 0 && (found === null || Boolean(found.drafted))
}

function passageOf(found) {
  const where = found.earlier ? "an earlier answer" : "this text"
  return [`${found.drafted ? "Drafted and looked up" : "Looked up"}: it followed the same ${count(found.match, "token")} in ${where}`, `…${visible(found.before)}▸${visible(found.after)}…`]
}

function svg(name, parent, className) {
  const element = document.createElementNS(SVG_NS, name)
  if (className) element.setAttribute("class", className)
  parent.appendChild(element)
  return element
}

function set(element, attributes) {
  for (const name in attributes) element.setAttribute(name, attributes[name])
}

function make(name, text, className) {
  const element = document.createElement(name)
  if (text !== undefined) element.textContent = text
  if (className) element.className = className
  return element
}

const quote = (text) => `“${isolated(visible(text))}”`
const count = (number, one, many = one + "s") => `${number.toLocaleString("en-US")} ${number === 1 ? one : many}`
const fixed = (value) => (value === null || value === undefined ? "–" : value >= 0.001 || value === 0 ? value.toFixed(3) : value.toExponential(1))
const brief = (value) => (value === null || value === undefined ? "–" : value.toFixed(2).replace(/^0/, ""))
const percent = (value) => (value === null || value === undefined ? "–" : value >= 0.0995 ? `${(100 * value).toFixed(0)}%` : value >= 0.001 || value === 0 ? `${(100 * value).toFixed(1)}%` : "< 0.1%")
const milliseconds = (seconds) => (seconds >= 0.1 ? `${(1000 * seconds).toFixed(0)} ms` : `${(1000 * seconds).toFixed(1)} ms`)
