// What stands around the tree: the lanes of seconds, the text so far, and the arithmetic of a decision.

const PHASES = [["draft", "blue"], ["verify", "orange"], ["walk", "yellow"], ["commit", "gray"]]

function describe(view, step) {
  const node = view.chosen ?? "bonus"
  const shape = shapeOf(view, step)
  const title = make("h4")
  title.append(make("code", visible(textOf(step, node))), ` ${node === 0 ? "root" : WORDS[stateOf(step, node)]}`)
  const last = step.path[step.path.length - 1]
  const parent = node === "bonus" ? last : shape.parents[node]
  const lines = []
  if (node === 0) lines.push("The last committed token. It is not speculated: the target reads it together with the drafted nodes.")
  else if (node === "bonus") lines.push(bonusStory(view, step, last))
  else {
    lines.push(`Child of rank ${shape.ranks[node]} below ${quote(step.tokens[parent])}: draft probability ${percent(step.draft[node])}, ` +
      `target probability ${percent(step.target[node])}.`)
    lines.push(decisionStory(view, step, node, parent))
  }
  const body = lines.map((line) => make("p", line))
  const trials = step.trials.filter(([child]) => shape.parents[child] === parent)
  if (node !== 0 && trials.length) body.push(trialTable(step, trials, node))
  if (view.chosen === null) body.push(make("p", "Click a node to see the arithmetic of its decision."))
  view.el.details.replaceChildren(title, ...body)
}

function bonusStory(view, step, last) {
  const children = shapeOf(view, step).children[last].length
  if (step.bonus === null) return "This step ended inside the accepted path, so no bonus token was committed."
  if (!children) return `${quote(step.tokens[last])} is a leaf, so the next token comes from the target's own probabilities there. Every step yields one.`
  const who = children === 1 ? "The one child" : `All ${children} children`
  const rest = view.about.greedy ? "the next token is the target's most likely one"
    : "the next token comes from what is left of the target's probabilities (the residual R)"
  return `${who} of ${quote(step.tokens[last])} ${children === 1 ? "was" : "were"} rejected, so ${rest}. Every step yields one.`
}

function decisionStory(view, step, node, parent) {
  const trial = step.trials.find(([child]) => child === node)
  if (!trial) {
    if (step.outcomes[parent] !== "A") return `Never looked at: ${quote(step.tokens[parent])} was not accepted.`
    return "Never looked at: an elder sibling was accepted first."
  }
  const [, uniform, targetMass, draftMass] = trial
  const accepted = step.outcomes[node] === "A"
  if (view.about.greedy) {
    return accepted ? "At temperature 0 the rule is equality: this is the target's most likely token, so it is accepted."
      : "At temperature 0 the rule is equality: this is not the target's most likely token, so it is rejected."
  }
  const ratio = draftMass > 0 ? targetMass / draftMass : null
  const sum = `R[s] / D[s] = ${fixed(targetMass)} / ${fixed(draftMass)} = ${ratio === null ? "∞" : fixed(ratio)}`
  return accepted ? `Accepted: r = ${fixed(uniform)} is below ${sum}.`
    : `Rejected: r = ${fixed(uniform)} is not below ${sum}. ${view.about.after_rejection}`
}

function trialTable(step, trials, node) {
  const table = make("table")
  const head = make("tr")
  for (const name of ["token", "r", "R[s]", "D[s]", "R/D", ""]) head.append(make("th", name))
  table.append(head)
  for (const [child, uniform, targetMass, draftMass] of trials) {
    const state = stateOf(step, child)
    const row = make("tr", undefined, child === node ? "chosen" : "")
    const ratio = draftMass > 0 ? fixed(targetMass / draftMass) : "∞"
    const cells = [visible(step.tokens[child]), fixed(uniform), fixed(targetMass), fixed(draftMass), ratio]
    for (const cell of cells) row.append(make("td", cell))
    row.append(make("td", state === "accepted" ? "✓" : "✗", state))
    table.append(row)
  }
  return table
}

function describePhases(view, step) {
  const total = step.seconds.reduce((sum, part) => sum + part, 0)
  const parts = PHASES.map(([name, colour], phase) => {
    const item = document.createElement("span")
    const mark = document.createElement("i")
    mark.style.background = `var(--st-${colour}-color)`
    item.append(mark, `${name} ${milliseconds(step.seconds[phase])}`)
    return item
  })
  const sum = document.createElement("span")
  sum.textContent = `= ${milliseconds(total)} for ${count(step.pieces.length, "token")}`
  view.el.phases.replaceChildren(...parts, sum)
}

function laneWidth(view) {
  return Math.min(16, view.el.lanes.clientWidth / Math.max(view.steps.length, 1))
}

function drawLanes(view) {
  const { lanes } = view.el
  const height = 48
  const pen = sized(lanes, lanes.clientWidth, height)
  if (!view.steps.length) return
  const tone = colours(view)
  const totals = view.steps.map((step) => step.seconds.reduce((sum, part) => sum + part, 0))
  // One slow step would flatten all others: the scale follows the 95th percentile, and a taller column is cut off.
  const ordered = [...totals].sort((a, b) => a - b)
  const scale = (height - 6) / (ordered[Math.floor((ordered.length - 1) * 0.95)] * 1.1 || 1)
  const width = laneWidth(view)
  view.steps.forEach((step, index) => {
    let floor = height
    PHASES.forEach(([, colour], phase) => {
      const tall = step.seconds[phase] * scale
      pen.fillStyle = tone(`--st-${colour}-color`)
      pen.fillRect(index * width, Math.max(floor - tall, 4), Math.max(width - 1, 0.8), Math.max(Math.min(tall, floor - 4), 0))
      floor -= tall
    })
  })
  pen.strokeStyle = tone("--st-text-color")
  pen.lineWidth = 1.5
  pen.strokeRect(view.shown * width - 0.5, 1, width, height - 2)
}

function countTokens(view) {
  let tokens = 0
  for (let i = 0; i <= view.shown; i++) tokens += view.steps[i].pieces.length
  const steps = view.shown + 1
  view.el.counts.textContent = `${count(tokens, "token")} in ${count(steps, "target pass", "target passes")} · ${(tokens / steps).toFixed(2)} tokens per step`
}

function appendText(view, step) {
  step.spans = step.pieces.map((piece, at) => {
    const node = at + 1 < step.path.length ? step.path[at + 1] : "bonus"
    const span = document.createElement("span")
    span.textContent = piece
    span.className = node === "bonus" ? "bonus" : "accepted"
    if (piece.startsWith("\n")) span.classList.add("line")
    span.onmouseenter = () => view.steps[view.shown] === step && hover(view, node)
    span.onmouseleave = () => hover(view, null)
    span.onclick = () => {
      play(view, false)
      show(view, step.index)
      choose(view, node)
    }
    view.el.body.appendChild(span)
    return { node, span }
  })
}

function markText(view) {
  view.steps.forEach((step, index) => {
    if (!step.spans) return
    for (const { span } of step.spans) {
      span.classList.toggle("later", index > view.shown)
      span.classList.toggle("now", index === view.shown)
    }
  })
  const box = view.el.text
  const last = view.steps[view.shown].spans?.at(-1)?.span
  if (!last) return
  const [low, high] = [box.scrollTop, box.scrollTop + box.clientHeight]
  const at = last.offsetTop - box.offsetTop
  if (at < low || at > high - 30) box.scrollTop = at - box.clientHeight + 48
}
