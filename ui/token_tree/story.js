// The panels around the tree: time per phase, the text so far, and the arithmetic of a decision.

const PHASES = [["draft", "blue"], ["read", "violet"], ["verify", "orange"], ["walk", "yellow"], ["commit", "gray"]]
const READ = 1
const ENDINGS = {
  eos: "The run ends here: this is the end-of-text token.",
  length: "The run ends here: it reached the requested number of tokens.",
  context: "The run ends here: the models' context is full.",
}

const textOf = (step, node) => (node === "bonus" ? step.bonus ?? "" : step.tokens[node])

function phaseSeconds(step) {
  // The target's pass includes waiting for weights.
  const [draft, verify, walk, commit] = step.seconds
  const read = Math.min(step.read_wait_sec ?? 0, verify)
  return [draft, read, verify - read, walk, commit]
}

function describe(view, step) {
  const shape = shapeOf(view, step)
  const node = nodeAt(view, step)
  const parent = node === "bonus" ? step.path.at(-1) : shape.parents[node]
  const trials = step.trials.filter(([child]) => shape.parents[child] === parent)
  const paragraphs = (lines) => lines.map((line) => make("p", line))
  const said = paragraphs(storyOf(view, step, node, parent))
  const sums = paragraphs(typeof node === "number" && node > 0 ? sumsOf(view, step, node, parent) : [])
  view.rows = new Map()
  if (node !== 0 && trials.length) sums.push(trialTable(view, step, trials, node))
  const rows = (step.rows ?? []).find((one) => one.node === (node === 0 ? 0 : parent))
  if (rows?.accepted) sums.push(...acceptanceTable(view, rows, shape.children[rows.node].length))
  if (rows) sums.push(...rowTables(view, step, rows, trials.findIndex(([child]) => child === node)))
  else if (step.lean) sums.push(make("p", "Both models' most likely tokens appear after the run."))
  if (view.chosen === null) said.push(make("p", "Click a node to see why it was accepted or not."))
  const title = view.chosen === null && view.reveal === null ? ["Why did it stop here?"]
    : [make("code", visible(textOf(step, node))), ` ${node === 0 ? "root" : WORDS[stateOf(view, step, node)]}`]
  const { el } = view
  el.head.firstChild.replaceChildren(...title)
  el.said.replaceChildren(...said)
  el.sums.replaceChildren(...sums)
  el.arithmetic.hidden = !sums.length
}

function storyOf(view, step, node, parent) {
  if (node === 0) return ["The last committed token. It is not a guess: the target reads it together with the drafted nodes."]
  if (node === "bonus") {
    const accepted = step.path.length - 1
    const walked = view.chosen === null ? [`${accepted} of ${count(step.tokens.length - 1, "drafted token")} accepted.`] : []
    return [...walked, bonusStory(view, step, parent), ...(step.finished ? [ENDINGS[step.finished]] : [])]
  }
  return [decisionStory(view, step, node, parent)]
}

function sumsOf(view, step, node, parent) {
  // The details of a decision, on request.
  const shape = shapeOf(view, step)
  const found = foundAt(step, node)
  return [
    `Child of rank ${shape.ranks[node]} below ${quote(step.tokens[parent])}: ${isDrafted(step, node) ? "draft probability" : LOOKUP} ` +
      `${percent(step.draft[node])}, target probability ${percent(step.target[node])}.`,
    ...(found ? passageOf(found) : []),
    ...(view.about.head && isDrafted(step, node) ? [stateStory(parent)] : []),
    ...drawStory(view, step, node),
    ...(step.marginal ? [gainStory(step.marginal, node)] : []),
  ]
}

function stateStory(parent) {
  if (parent === 0) return "Drafted from true states: the head read the target's hidden states for the text so far."
  return "Drafted without true states: the target has not read the tokens before it, so the head had to guess them."
}

function bonusStory(view, step, last) {
  const children = shapeOf(view, step).children[last].length
  if (step.bonus === null) return `The text ends with ${quote(step.tokens[last])}, so nothing was drawn after it.`
  if (!children) {
    return `${quote(step.tokens[last])} is a leaf: the tree ends there. The next token, ${quote(step.bonus)}, comes from the target; every step yields one.`
  }
  const who = children === 1 ? "the only child" : `all ${children} children`
  const rest = view.about.greedy ? `The target's most likely token is ${quote(step.bonus)}, which was not proposed there`
    : `${quote(step.bonus)} was drawn from the target's remaining probabilities (the residual R)`
  return `After ${quote(step.tokens[last])} ${who} ${children === 1 ? "was" : "were"} rejected. ${rest}. Every step yields one such token.`
}

function decisionStory(view, step, node, parent) {
  const trial = step.trials.find(([child]) => child === node)
  if (!trial) {
    if (step.outcomes[parent] !== "A") return `Not reached: ${quote(step.tokens[parent])} was not accepted.`
    if (step.bonus === null && parent === step.path[step.path.length - 1]) {
      return `Not reached: the text ends with ${quote(step.tokens[parent])}.`
    }
    return "Not reached: an earlier sibling was accepted first."
  }
  const [, , left, drafted] = trial
  const accepted = step.outcomes[node] === "A"
  if (view.about.greedy) {
    const best = (step.rows ?? []).find((one) => one.node === parent)?.target
    const other = best?.texts.length ? `, which is ${quote(best.texts[0])} (${percent(best.probs[0])})` : ""
    return accepted ? "At temperature 0 only the target's most likely token counts. This is it: accepted."
      : `At temperature 0 only the target's most likely token counts${other}: rejected.`
  }
  const elder = step.trials.some(([child]) => child < node && shapeOf(view, step).parents[child] === parent)
  const rule = `${elder ? "the target's remaining probability" : "target"} ${percent(left)} ÷ ${elder ? "the draft's remaining" : "draft"} ${percent(drafted)}`
  const chance = chanceOf(trial)
  const sum = chance <= 0 ? "never accepted" : chance >= 1 ? "always accepted" : `accepted in ${percent(chance)} of draws`
  const why = chance <= 0 ? "The target would not write it here."
    : chance >= 1 ? "The target writes it at least as often as the draft proposes it."
      : `The draft proposes it more often than the target would write it, so it is accepted only that often, and this time it was${accepted ? "" : " not"}.`
  return `${rule[0].toUpperCase()}${rule.slice(1)}: ${sum}. ${why}`
}

function drawStory(view, step, node) {
  // The random number, if it decided, and the result of a rejection.
  const trial = step.trials.find(([child]) => child === node)
  if (!trial || view.about.greedy) return []
  const chance = chanceOf(trial)
  const accepted = step.outcomes[node] === "A"
  const drawn = chance <= 0 || chance >= 1 ? [] : [`r = ${fixed(trial[1])} was drawn, ${accepted ? "below" : "not below"} ${fixed(chance)}: ${accepted ? "accepted" : "rejected"}.`]
  return accepted ? drawn : [...drawn, view.about.after_rejection]
}

const chanceOf = ([, , left, drafted]) => (drafted > 0 ? Math.min(1, left / drafted) : 1)

function trialTable(view, step, trials, node) {
  // At temperature 0 both models' probabilities; otherwise the compared masses, and r if it decided.
  const { greedy } = view.about
  const table = make("table")
  const line = (cells, name, className) => {
    const row = make("tr", undefined, className)
    for (const cell of cells) row.append(make(name, cell))
    table.append(row)
    return row
  }
  line(greedy ? ["token", "target", "draft", ""] : ["token", "target", "÷ draft", "chance", "r", ""], "th")
  for (const trial of trials) {
    const [child, uniform, left, drafted] = trial
    const state = STATES[step.outcomes[child]]
    const chance = chanceOf(trial)
    const compared = greedy ? [percent(step.target[child]), percent(step.draft[child])]
      : [percent(left), percent(drafted), percent(chance), chance > 0 && chance < 1 ? fixed(uniform) : ""]
    const row = line([visible(step.tokens[child]), ...compared, state === "accepted" ? "✓" : "✗"], "td", child === node ? "chosen" : "")
    row.lastChild.className = state
    row.onmouseenter = () => hover(view, child)
    row.onmouseleave = () => hover(view, null)
    row.onclick = () => choose(view, child)
    view.rows.set(child, row)
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
  // Describe the current moment of a paused or slowly played run; otherwise, summarize the step.
  const { reveal } = view
  if (isHeld(view) && isAtHead(view)) return `Paused after step ${view.held}: ▶ takes one more step, Play continues. After 2 minutes, the run continues automatically.`
  const start = `Step ${view.shown + 1}: `
  const guesses = step.tokens.length - 1
  if (reveal === 0) return `${start}${proposersOf(step)} proposed ${count(guesses, "token")}; the target checks all of them in one pass.`
  if (reveal !== null && reveal <= step.trials.length) {
    const [node] = step.trials[reveal - 1]
    return `${start}on the walk down the tree, ${quote(step.tokens[node])} is ${step.outcomes[node] === "A" ? "accepted" : "rejected"}.`
  }
  const bonus = step.bonus === null ? "" : `, and the target itself adds ${quote(step.bonus)}`
  return `${start}${step.path.length - 1} of ${count(guesses, "guess", "guesses")} right${bonus}: ${count(step.pieces.length, "token")} from one pass.`
}

function proposersOf(step) {
  const drafted = step.tokens.some((_, node) => isDrafted(step, node))
  if (!step.found_at) return "the draft has"
  return drafted ? "the draft and text already seen have" : "text already seen has"
}

function drawGrowth(view) {
  // Above, the nodes of each step's tree; below, its tokens with their mean so far.
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
    item("green", `${count(yields[view.shown], "token")} in this step, ${(tokens / yields.length).toFixed(2)} on average (line)`),
  )
}

function laneWidth(view) {
  return Math.min(16, view.el.lanes.clientWidth / Math.max(view.steps.length, 1))
}

const rejectedIn = (step, after = 0) => step.tokens.findIndex((_, node) => node > after && step.outcomes[node] === "R")

function longestUsual(seconds) {
  // A little more than the 95th percentile, because one slow step would flatten all others; taller columns are cut off.
  const ordered = seconds.toSorted((a, b) => a - b)
  return ordered[Math.floor((ordered.length - 1) * 0.95)] * 1.1 || 1
}

function drawLanes(view) {
  const { lanes } = view.el
  const height = 48
  const pen = sized(lanes, lanes.clientWidth, height)
  if (!view.steps.length) return
  const tone = colours(view)
  const parts = view.steps.map(phaseSeconds)
  const totals = view.steps.map(secondsOf)
  const scale = (height - 6) / longestUsual(totals)
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
      reveal(view, view.chosen)
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
