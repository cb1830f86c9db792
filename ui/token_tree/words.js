// How texts and figures are written. Token text is foreign text: it only ever goes in by textContent.

const WORDS = { accepted: "accepted", rejected: "rejected", unreached: "not reached", bonus: "bonus token" }
const LOOKUP = "chance by lookup"
const CHAR_WIDTH = 6.7 // of the 11 px monospace labels
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6]|\p{Extended_Pictographic}/u // Chinese, Japanese, Korean, emoji

function visible(text) {
  if (text === "") return "∅"
  return text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥")
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
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

function widthOf(text) {
  return Array.from(text).reduce((sum, letter) => sum + (WIDE.test(letter) ? 1.7 : 1) * CHAR_WIDTH, 0)
}

function shorten(text, room) {
  const letters = Array.from(visible(text))
  const fits = () => widthOf(letters.join("")) <= Math.max(room, CHAR_WIDTH)
  if (!fits() && letters.length > 2 && letters[0] === "·") letters.shift()
  if (fits()) return letters.join("")
  while (letters.length > 1 && widthOf(letters.join("") + "…") > room) letters.pop()
  return letters.join("") + "…"
}

function make(name, text, className) {
  const element = document.createElement(name)
  if (text !== undefined) element.textContent = text
  if (className) element.className = className
  return element
}

const quote = (text) => `“${visible(text)}”`
const count = (number, one, many = one + "s") => `${number} ${number === 1 ? one : many}`
const fixed = (value) => (value === null || value === undefined ? "–" : value >= 0.001 || value === 0 ? value.toFixed(3) : value.toExponential(1))
const brief = (value) => (value === null || value === undefined ? "–" : value.toFixed(2).replace(/^0/, ""))
const percent = (value) => (value === null || value === undefined ? "–" : value >= 0.0995 ? `${(100 * value).toFixed(0)}%` : value >= 0.001 || value === 0 ? `${(100 * value).toFixed(1)}%` : "< 0.1%")
const milliseconds = (seconds) => (seconds >= 0.1 ? `${(1000 * seconds).toFixed(0)} ms` : `${(1000 * seconds).toFixed(1)} ms`)
