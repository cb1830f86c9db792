// What stands around the tree: the lanes of seconds, the text so far, and the arithmetic of a decision.

const PHASES = [["draft", "blue"], ["read", "violet"], ["verify", "orange"], ["walk", "yellow"], ["commit", "gray"]]
const READ = 1
const ENDINGS = {
  eos: "The run ends here: this is the end-of-text token.",
  length: "The run ends here: it has as many tokens as were asked for.",
  context: "The run ends here: the models' context is full.",
}

function phaseSeconds(step) {
  // Waiting for weights to be read is part of the target's pass.
  const [draft, verify, walk, commit] = step.seconds
  const read = Math.min(step.read_wait_sec ?? 0, verify)
  return [draft, read, verify - read, walk, commit]
}

function describe(view, step) {
  const shape = shapeOf(view, step)
  const last = step.path[step.path.length - 1]
  const node = view.chosen ?? "bonus"
  const parent = node === "bonus" ? last : shape.parents[node]
  const trials = step.trials.filter(([child]) => shape.parents[child] === parent)
  const body = storyOf(view, step, node, parent).map((line) => make("p", line))
  view.rows = new Map()
  if (node !== 0 && trials.length) body.push(trialTable(view, step, trials, node))
  const rows = (step.rows ?? []).find((one) => one.node === (node === 0 ? 0 : parent))
  if (rows?.accepted) body.push(...acceptanceTable(view, rows, shape.children[rows.node].length))
  if (rows) body.push(...rowTables(view, step, rows, trials.findIndex(([child]) => child === node)))
  else if (step.lean) body.push(make("p", "What both models thought here comes once the run has ended."))
  if (view.chosen === null) body.push(make("p", "Click a node to see the arithmetic of its decision; ↑ and ↓ go from node to node."))
  view.el.details.replaceChildren(titleOf(view, step, node), ...body)
}

function titleOf(view, step, node) {
  if (view.chosen === null) return make("h4", "Why did it stop here?")
  const title = make("h4")
  title.append(make("code", visible(textOf(step, node))), ` ${node === 0 ? "root" : WORDS[stateOf(view, step, node)]}`)
  return title
}

function storyOf(view, step, node, parent) {
  if (node === 0) return ["The last committed token. It is not speculated: the target reads it together with the drafted nodes."]
  if (node === "bonus") {
    const accepted = step.path.length - 1
    const walked = view.chosen === null ? [`${accepted} of ${count(step.tokens.length - 1, "drafted token")} accepted.`] : []
    return [...walked, bonusStory(view, step, parent), ...(step.finished ? [ENDINGS[step.finished]] : [])]
  }
  const shape = shapeOf(view, step)
  const found = foundAt(step, node)
  return [
    `Child of rank ${shape.ranks[node]} below ${quote(step.tokens[parent])}: ${isDrafted(step, node) ? "draft probability" : LOOKUP} ` +
      `${percent(step.draft[node])}, target probability ${percent(step.target[node])}.`,
    ...(found ? passageOf(found) : []),
    decisionStory(view, step, node, parent),
    ...(step.marginal ? [gainStory(step.marginal, node)] : []),
  ]
}

function bonusStory(view, step, last) {
  const children = shapeOf(view, step).children[last].length
  if (step.bonus === null) return `The text ends with ${quote(step.tokens[last])}, so nothing was drawn after it.`
  if (!children) {
    return `${quote(step.tokens[last])} is a leaf: the tree ends there, and a deeper one might have gone on. So the next token, ` +
      `${quote(step.bonus)}, comes from the target's own probabilities. Every step yields one.`
  }
  const who = children === 1 ? "the one child" : `all ${children} children`
  const rest = view.about.greedy ? `The target's most likely token is ${quote(step.bonus)}, which was not proposed there`
    : `${quote(step.bonus)} was drawn from what is left of the target's probabilities (the residual R)`
  return `After ${quote(step.tokens[last])} ${who} ${children === 1 ? "was" : "were"} rejected. ${rest}. Every step yields one such token.`
}

function decisionStory(view, step, node, parent) {
  const trial = step.trials.find(([child]) => child === node)
  if (!trial) {
    if (step.outcomes[parent] !== "A") return `Never looked at: ${quote(step.tokens[parent])} was not accepted.`
    if (step.bonus === null && parent === step.path[step.path.length - 1]) {
      return `Never looked at: the text ends with ${quote(step.tokens[parent])}.`
    }
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

function trialTable(view, step, trials, node) {
  const table = make("table")
  const head = make("tr")
  for (const name of ["token", "r", "R[s]", "D[s]", "R/D", ""]) head.append(make("th", name))
  table.append(head)
  for (const [child, uniform, targetMass, draftMass] of trials) {
    const state = STATES[step.outcomes[child]]
    const row = make("tr", undefined, child === node ? "chosen" : "")
    const ratio = draftMass > 0 ? fixed(targetMass / draftMass) : "∞"
    const cells = [visible(step.tokens[child]), fixed(uniform), fixed(targetMass), fixed(draftMass), ratio]
    for (const cell of cells) row.append(make("td", cell))
    row.append(make("td", state === "accepted" ? "✓" : "✗", state))
    row.onmouseenter = () => hover(view, child)
    row.onmouseleave = () => hover(view, null)
    row.onclick = () => choose(view, child)
    view.rows.set(child, row)
    table.append(row)
  }
  return table
}

function describePhases(view, step) {
  const seconds = phaseSeconds(step)
  const total = seconds.reduce((sum, part) => sum + part, 0)
  const lane = make("div", undefined, "lane")
  const items = []
  PHASES.forEach(([name, colour], phase) => {
    if (phase === READ && !view.reads) return
    const part = make("i")
    const mark = make("i")
    part.style.background = mark.style.background = `var(--st-${colour}-color)`
    part.style.flexGrow = seconds[phase] / (total || 1)
    lane.append(part)
    const item = make("span")
    item.append(mark, `${name} ${milliseconds(seconds[phase])}`)
    items.push(item)
  })
  items.push(make("span", `= ${milliseconds(total)} for ${count(step.pieces.length, "token")}`))
  view.el.phases.replaceChildren(lane, ...items)
}

function captionOf(view, step) {
  // What happens at this moment of a step that is played slowly.
  const { reveal } = view
  if (reveal === 0) {
    return `Step ${view.shown + 1}: ${proposersOf(step)} proposed ${count(step.tokens.length - 1, "token")}; the target checks all of them in one pass.`
  }
  if (reveal > step.trials.length) {
    const bonus = step.bonus === null ? "" : ` The target itself adds ${quote(step.bonus)}.`
    return `${count(step.pieces.length, "token")} from one pass of the target.${bonus}`
  }
  const [node] = step.trials[reveal - 1]
  const isAccepted = step.outcomes[node] === "A"
  return `Walking down the tree: ${quote(step.tokens[node])} is ${isAccepted ? "accepted" : "rejected"}.`
}

function proposersOf(step) {
  const drafted = step.tokens.some((_, node) => isDrafted(step, node))
  if (!step.found_at) return "the draft has"
  return drafted ? "the draft and text already seen have" : "text already seen has"
}

function drawGrowth(view) {
  // Above how many nodes each step's tree had, below how many tokens it yielded, with their mean so far.
  const { growth } = view.el
  const height = 48
  const pen = sized(growth, growth.clientWidth, height)
  if (!view.steps.length) return
  const tone = colours(view)
  const width = laneWidth(view)
  const sizes = view.steps.map((step) => step.tokens.length)
  const yields = view.steps.map((step) => step.pieces.length)
  const [largest, most] = [sizes, yields].map((values) => values.reduce((top, value) => Math.max(top, value), 1))
  const half = height / 2
  const bars = (values, top, floor, colour) => {
    pen.fillStyle = tone(colour)
    values.forEach((value, index) => {
      const tall = ((half - 3) * value) / top
      pen.fillRect(index * width, floor - tall, Math.max(width - 1, 0.8), tall)
    })
  }
  bars(sizes, largest, half - 1, "--st-gray-color")
  bars(yields, most, height, "--st-green-color")
  let tokens = 0
  pen.beginPath()
  yields.forEach((value, index) => {
    tokens += value
    const y = height - ((half - 3) * tokens) / (index + 1) / most
    pen.lineTo(index * width, y)
    pen.lineTo((index + 1) * width, y)
  })
  pen.strokeStyle = tone("--st-text-color")
  pen.lineWidth = 1.5
  pen.stroke()
  pen.strokeRect(view.shown * width - 0.5, 1, width, height - 2)
  const smallest = sizes.reduce((least, value) => Math.min(least, value), largest)
  const range = smallest === largest ? "in every step" : `of ${smallest} to ${largest}`
  const item = (colour, words) => {
    const found = make("span")
    const mark = make("i")
    mark.style.background = `var(--st-${colour}-color)`
    found.append(mark, words)
    return found
  }
  view.el["growth-key"].replaceChildren(
    item("gray", `n = ${sizes[view.shown]} nodes, ${range}`),
    item("green", `${count(yields[view.shown], "token")} in this step, ${(tokens / yields.length).toFixed(2)} in the mean (line)`),
  )
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
  const parts = view.steps.map(phaseSeconds)
  const totals = parts.map((seconds) => seconds.reduce((sum, part) => sum + part, 0))
  // One slow step would flatten all others: the scale follows the 95th percentile, and a taller column is cut off.
  const ordered = [...totals].sort((a, b) => a - b)
  const scale = (height - 6) / (ordered[Math.floor((ordered.length - 1) * 0.95)] * 1.1 || 1)
  const width = laneWidth(view)
  parts.forEach((seconds, index) => {
    let floor = height
    PHASES.forEach(([, colour], phase) => {
      const tall = seconds[phase] * scale
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
    for (const { node, span } of step.spans) {
      const isHidden = index === view.shown && (node === "bonus" ? !showsBonus(view, step) : stateOf(view, step, node) !== "accepted")
      span.classList.toggle("later", index > view.shown || isHidden)
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
