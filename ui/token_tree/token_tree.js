// The live token tree. Python sends the layout once per run (an "epoch") and then only new steps; this file keeps the
// history, draws one step at a time and asks for a resync when something is missing. Token text is foreign text: it
// only ever goes in by textContent.

const SVG_NS = "http://www.w3.org/2000/svg"
const SVG_LIMIT = 2000 // nodes; above it one canvas draws faster than that many elements
const STAGE_HEIGHT = 540
const SPREAD_ROW = 30
const CHAR_WIDTH = 6.7 // of the 11 px monospace labels
const PLAY_MS = 420
const PHASES = [["draft", "blue"], ["verify", "orange"], ["walk", "yellow"], ["commit", "gray"]]
const STATES = { A: "accepted", R: "rejected", N: "unreached" }
const WORDS = { accepted: "accepted", rejected: "rejected", unreached: "not reached", bonus: "bonus token" }

const views = new WeakMap()
const ASK_AGAIN_MS = 500
const MOST_REQUESTS = 12 // for the same step

export default function (component) {
  const { data, parentElement, setTriggerValue } = component
  let view = views.get(parentElement)
  if (!view) {
    view = createView(parentElement)
    views.set(parentElement, view)
  }
  view.ask = (have) => setTriggerValue("resync", { epoch: view.wanted, have })
  if (!view.observer) observeSize(view)
  if (data) receive(view, data)
  return () => {
    clearInterval(view.timer)
    clearTimeout(view.again)
    view.timer = view.asking = null
    view.observer.disconnect()
    view.observer = null
  }
}

function createView(parent) {
  const find = (name) => parent.querySelector("." + name)
  const names = ["tt", "prev", "play", "next", "scrub", "at", "size", "lanes", "phases", "stage", "graph", "edges",
    "bonus-edge", "nodes", "field", "tip", "wait", "counts", "text", "prompt", "body", "details", "gauge-key"]
  const view = { el: Object.fromEntries(names.map((name) => [name, find(name)])) }
  Object.assign(view, { epoch: null, steps: [], asked: {}, spread: false, timer: null })
  const { el } = view
  el.prev.onclick = () => show(view, view.shown - 1)
  el.next.onclick = () => show(view, view.shown + 1)
  el.play.onclick = () => play(view, !view.timer)
  el.scrub.oninput = () => show(view, Number(el.scrub.value))
  el.size.onclick = () => {
    view.spread = !view.spread
    el.size.textContent = view.spread ? "Fit" : "Spread out"
    arrange(view)
  }
  el.tt.onkeydown = (event) => {
    const onButton = event.target.tagName === "BUTTON"
    const moves = { ArrowLeft: view.shown - 1, ArrowRight: view.shown + 1, Home: 0, End: view.steps.length - 1 }
    if (event.key in moves) show(view, moves[event.key])
    else if (event.key === " " && !onButton) play(view, !view.timer)
    else return
    event.preventDefault()
  }
  const pickStep = (event) => {
    if (event.buttons !== 1 || !view.steps.length) return
    const across = event.clientX - el.lanes.getBoundingClientRect().left
    show(view, Math.floor(across / laneWidth(view)))
  }
  el.lanes.onpointerdown = pickStep
  el.lanes.onpointermove = pickStep
  el.field.onmousemove = (event) => hover(view, nearest(view, event))
  el.field.onmouseleave = () => hover(view, null)
  el.field.onclick = (event) => choose(view, nearest(view, event))
  return view
}

function observeSize(view) {
  view.observer = new ResizeObserver(() => {
    if (view.layout && view.el.stage.clientWidth !== view.width) arrange(view)
  })
  view.observer.observe(view.el.stage)
}

function receive(view, data) {
  view.wanted = data.epoch
  if (data.epoch !== view.epoch) {
    if (!data.layout) return request(view, 0)
    begin(view, data)
  }
  const had = view.steps.length
  for (const step of data.steps) if (step.index === view.steps.length) view.steps.push(step)
  view.running = data.running
  const have = view.steps.length
  if (have < data.from || (!data.running && have < data.total)) request(view, have)
  view.el.tt.classList.toggle("empty", !have)
  view.el.wait.textContent = data.waiting || (data.running ? "Waiting for the first step" : "No steps were decoded")
  for (let i = had; i < have; i++) appendText(view, view.steps[i])
  view.el.scrub.max = Math.max(have - 1, 0)
  if (have && (view.follow || view.shown < 0)) show(view, have - 1)
  else refresh(view)
}

function request(view, have) {
  // A lost step is asked for until it comes, twice a second, but never forever: the server may no longer have it. It always
  // has the layout. Messages that arrive meanwhile do not ask again: the answer to the first request is on its way.
  const name = `${view.wanted}:${have}`
  if (view.asking === name) return
  view.asked[name] = (view.asked[name] || 0) + 1
  if (view.epoch === view.wanted && view.asked[name] > MOST_REQUESTS) return
  view.asking = name
  clearTimeout(view.again)
  setTimeout(() => view.ask(have), 0)
  view.again = setTimeout(() => {
    view.asking = null
    if (view.epoch !== view.wanted || view.steps.length === have) request(view, have)
  }, ASK_AGAIN_MS)
}

function begin(view, data) {
  play(view, false)
  const { layout } = data
  Object.assign(view, { epoch: data.epoch, layout, steps: [], asked: {}, shown: -1, follow: true, chosen: null })
  const count = layout.parents.length
  view.children = Array.from({ length: count }, () => [])
  layout.parents.forEach((parent, node) => parent >= 0 && view.children[parent].push(node))
  view.leaves = Math.max(...layout.across) + 1
  view.depth = Math.max(...layout.depths)
  view.el.prompt.textContent = layout.prompt
  view.el.body.replaceChildren()
  view.el.details.replaceChildren()
  build(view)
  arrange(view)
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

function build(view) {
  const { el, layout } = view
  el.edges.replaceChildren()
  el.nodes.replaceChildren()
  el["bonus-edge"].replaceChildren()
  view.onCanvas = layout.parents.length > SVG_LIMIT
  el.graph.toggleAttribute("hidden", view.onCanvas)
  el.field.toggleAttribute("hidden", !view.onCanvas)
  view.nodes = []
  view.edges = []
  if (view.onCanvas) return
  layout.parents.forEach((parent, node) => {
    view.edges.push(node ? svg("path", el.edges) : null)
    view.nodes.push(makeNode(view, node))
  })
  view.bonusEdge = svg("path", el["bonus-edge"])
  view.bonus = makeNode(view, "bonus")
}

function makeNode(view, id) {
  const group = svg("g", view.el.nodes, "node")
  const parts = { group, veil: svg("rect", group, "veil"), box: svg("rect", group, "box"), q: svg("rect", group, "q"),
    p: svg("rect", group, "p"), label: svg("text", group), odds: svg("text", group, "odds") }
  group.onmouseenter = () => hover(view, id)
  group.onmouseleave = () => hover(view, null)
  group.onclick = () => choose(view, id)
  return parts
}

function arrange(view) {
  const { el, layout } = view
  view.width = el.stage.clientWidth
  const fitted = Math.min(34, (STAGE_HEIGHT - 32) / (view.leaves + 1))
  view.row = view.spread ? Math.max(fitted, SPREAD_ROW) : fitted
  const height = Math.ceil((view.leaves + 1) * view.row + 16)
  const columns = view.depth + 2 // one more for a bonus token below the deepest level
  const least = view.spread ? 118 : 10
  view.column = Math.min(170, Math.max(least, (view.width - 20) / columns))
  const width = Math.max(view.width, Math.ceil(columns * view.column + 20))
  view.pills = view.row >= 13 && view.column >= 36 && !view.onCanvas
  view.tall = view.row >= 28 && view.column >= 118 && view.pills // room for the numbers too
  view.x = layout.depths.map((depth) => 10 + depth * view.column)
  view.y = layout.across.map((across) => 8 + (across + 1) * view.row)
  view.slots = new Map() // where a bonus token fits, per last accepted node
  el.tt.classList.toggle("dots", !view.pills)
  el["gauge-key"].hidden = !view.pills
  set(el.graph, { width, height })
  el.field.style.width = width + "px"
  el.field.style.height = height + "px"
  if (!view.onCanvas) {
    view.edges.forEach((edge, node) => edge && set(edge, { d: curve(view, layout.parents[node], view.x[node], view.y[node]) }))
  }
  refresh(view)
}

function curve(view, from, x, y) {
  const start = view.x[from] + 5
  const middle = view.pills ? x - Math.min(22, view.column / 3) : (start + x) / 2
  return `M${start},${view.y[from]} C${middle},${view.y[from]} ${middle},${y} ${x + 1},${y}`
}

function bonusPlace(view, parent) {
  // The free spot in the next column that is nearest to the parent's row.
  if (!view.slots.has(parent)) {
    const depth = view.layout.depths[parent] + 1
    const taken = view.y.filter((_, node) => view.layout.depths[node] === depth)
    const free = (y) => y > 6 && y < 10 + (view.leaves + 1) * view.row && taken.every((other) => Math.abs(other - y) >= view.row * 0.95)
    let best = view.y[parent]
    for (let k = 0; k <= 4 * (view.leaves + 2); k++) {
      const y = view.y[parent] + (k % 2 ? 1 : -1) * Math.ceil(k / 2) * view.row * 0.5
      if (free(y)) {
        best = y
        break
      }
    }
    view.slots.set(parent, { x: 10 + depth * view.column, y: best })
  }
  return view.slots.get(parent)
}

function stateOf(step, node) {
  return node === "bonus" ? "bonus" : STATES[step.outcomes[node]]
}

function paint(view, step) {
  if (view.onCanvas) return paintCanvas(view, step)
  const path = new Set(step.path)
  view.layout.parents.forEach((parent, node) => {
    const state = stateOf(step, node)
    if (parent >= 0) set(view.edges[node], { class: state })
    paintNode(view, view.nodes[node], {
      x: view.x[node], y: view.y[node], state, text: step.tokens[node], named: path.has(node),
      q: node ? step.draft[node] : null, p: node ? step.target[node] : null, chosen: view.chosen === node,
    })
  })
  const last = step.path[step.path.length - 1]
  const place = bonusPlace(view, last)
  const shown = step.bonus !== null
  view.bonus.group.toggleAttribute("hidden", !shown)
  view.bonusEdge.toggleAttribute("hidden", !shown)
  if (!shown) return
  set(view.bonusEdge, { d: curve(view, last, place.x, place.y) })
  paintNode(view, view.bonus, { ...place, state: "bonus", text: step.bonus, named: true, q: null, p: null, chosen: view.chosen === "bonus" })
}

function paintNode(view, parts, node) {
  const { group, veil, box, q, p, label, odds } = parts
  const classes = `node ${node.state}${node.chosen ? " chosen" : ""}`
  group.setAttribute("class", classes)
  if (!view.pills) {
    const radius = Math.max(1.5, Math.min(5, view.row * 0.42, view.column * 0.3)) * (node.named ? 1.25 : 1)
    set(box, { x: node.x + 5 - radius, y: node.y - radius, width: 2 * radius, height: 2 * radius, rx: radius })
    set(veil, { width: 0, height: 0 })
    set(q, { width: 0, height: 0 })
    set(p, { width: 0, height: 0 })
    odds.textContent = ""
    label.textContent = node.named && view.column >= 26 ? shorten(node.text, (view.column - radius - 10) / CHAR_WIDTH) : ""
    set(label, { x: node.x + 8 + radius, y: node.y })
    return
  }
  const gauge = node.q === null ? 0 : 11
  const room = view.column - 26 - gauge
  const text = shorten(node.text, room / CHAR_WIDTH)
  const height = Math.min(view.row - 2.5, view.tall ? 29 : 19)
  const inner = Math.max(Array.from(text).length * CHAR_WIDTH, view.tall && gauge ? 80 : 8)
  const width = inner + 12 + gauge
  const top = node.y - height / 2
  set(veil, { x: node.x, y: top, width, height, rx: 5 })
  set(box, { x: node.x, y: top, width, height, rx: 5 })
  label.textContent = text
  set(label, { x: node.x + 6, y: node.y - (view.tall && gauge ? 6 : 0) })
  odds.textContent = view.tall && gauge ? `q ${brief(node.q)} p ${brief(node.p)}` : ""
  set(odds, { x: node.x + 6, y: node.y + 7 })
  const bar = (value) => (gauge ? Math.max(0, Math.min(1, value || 0)) * (height - 4) : 0)
  const stand = (value, offset) => ({ x: node.x + width - offset, y: top + height - 2 - bar(value), width: 3, height: bar(value) })
  set(q, stand(node.q, 10))
  set(p, stand(node.p, 6))
}

function colours(view) {
  const style = getComputedStyle(view.el.tt)
  return (name) => style.getPropertyValue(name).trim()
}

function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1
  canvas.width = Math.round(width * ratio)
  canvas.height = Math.round(height * ratio)
  const pen = canvas.getContext("2d")
  pen.setTransform(ratio, 0, 0, ratio, 0, 0)
  pen.clearRect(0, 0, width, height)
  return pen
}

function paintCanvas(view, step) {
  const { el, layout } = view
  const tone = colours(view)
  const width = parseInt(el.field.style.width)
  const height = parseInt(el.field.style.height)
  const pen = sized(el.field, width, height)
  const fill = { accepted: tone("--st-green-color"), rejected: tone("--st-red-color"), unreached: tone("--st-gray-color"),
    bonus: tone("--st-violet-color") }
  const link = (from, x, y) => {
    const middle = (view.x[from] + 5 + x) / 2
    pen.moveTo(view.x[from] + 5, view.y[from])
    pen.bezierCurveTo(middle, view.y[from], middle, y, x + 5, y)
  }
  const strokeEdges = (accepted) => {
    pen.beginPath()
    layout.parents.forEach((parent, node) => {
      if (parent >= 0 && (step.outcomes[node] === "A") === accepted) link(parent, view.x[node], view.y[node])
    })
    pen.strokeStyle = accepted ? fill.accepted : tone("--st-border-color")
    pen.lineWidth = accepted ? 2.5 : 0.7
    pen.stroke()
  }
  strokeEdges(false)
  strokeEdges(true)
  const radius = Math.max(1.2, Math.min(4, view.row * 0.42))
  for (const code of ["N", "R", "A"]) {
    pen.beginPath()
    layout.parents.forEach((_, node) => {
      if (step.outcomes[node] !== code) return
      const size = code === "A" ? Math.max(3.5, radius) : code === "R" ? Math.max(2.2, radius) : radius
      pen.moveTo(view.x[node] + 5 + size, view.y[node])
      pen.arc(view.x[node] + 5, view.y[node], size, 0, 7)
    })
    pen.globalAlpha = code === "N" ? 0.6 : 1
    pen.fillStyle = fill[STATES[code]]
    pen.fill()
    pen.globalAlpha = 1
  }
  if (step.bonus !== null) {
    const last = step.path[step.path.length - 1]
    const place = bonusPlace(view, last)
    pen.beginPath()
    link(last, place.x, place.y)
    pen.strokeStyle = pen.fillStyle = fill.bonus
    pen.stroke()
    pen.beginPath()
    pen.arc(place.x + 5, place.y, 4, 0, 7)
    pen.fill()
  }
  const marked = view.linked ?? view.chosen
  if (marked !== null && marked !== undefined) {
    const place = placeOf(view, step, marked)
    pen.beginPath()
    pen.arc(place.x + 5, place.y, 7, 0, 7)
    pen.strokeStyle = tone("--st-text-color")
    pen.lineWidth = 2
    pen.stroke()
  }
}

function placeOf(view, step, node) {
  if (node === "bonus") return bonusPlace(view, step.path[step.path.length - 1])
  return { x: view.x[node], y: view.y[node] }
}

function nearest(view, event) {
  const step = view.steps[view.shown]
  if (!step) return null
  let best = null
  let least = 144 // 12 px, squared
  const measure = (id, x, y) => {
    const distance = (x + 5 - event.offsetX) ** 2 + (y - event.offsetY) ** 2
    if (distance < least) [best, least] = [id, distance]
  }
  view.x.forEach((x, node) => measure(node, x, view.y[node]))
  if (step.bonus !== null) {
    const place = placeOf(view, step, "bonus")
    measure("bonus", place.x, place.y)
  }
  return best
}

function show(view, index) {
  if (!view.steps.length) return
  view.shown = Math.max(0, Math.min(index, view.steps.length - 1))
  view.follow = view.shown === view.steps.length - 1
  view.linked = null
  refresh(view)
}

function play(view, on) {
  clearInterval(view.timer)
  view.timer = null
  if (on && view.steps.length) {
    if (view.shown >= view.steps.length - 1) show(view, 0)
    view.timer = setInterval(() => {
      show(view, view.shown + 1)
      if (view.shown >= view.steps.length - 1) play(view, false)
    }, PLAY_MS)
  }
  view.el.play.textContent = view.timer ? "❚❚ Pause" : "▶ Play"
}

function refresh(view) {
  const { el } = view
  const step = view.steps[view.shown]
  el.at.textContent = step ? `step ${view.shown + 1} of ${view.steps.length}` : ""
  el.scrub.value = Math.max(view.shown, 0)
  drawLanes(view)
  if (!step) return
  paint(view, step)
  describePhases(view, step)
  countTokens(view)
  markText(view)
  describe(view, step)
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

function hover(view, node) {
  const step = view.steps[view.shown]
  if (!step) return
  view.linked = node
  if (view.onCanvas) paintCanvas(view, step)
  else {
    view.nodes.forEach((parts, id) => parts.group.classList.toggle("linked", id === node))
    view.bonus.group.classList.toggle("linked", node === "bonus")
  }
  for (const item of step.spans || []) item.span.classList.toggle("linked", node !== null && item.node === node)
  const { tip, stage } = view.el
  tip.hidden = node === null
  if (node === null) return
  const odds = typeof node === "number" && node > 0 ? `\ndraft ${percent(step.draft[node])} · target ${percent(step.target[node])}` : ""
  tip.textContent = `${visible(textOf(step, node))}  ${node === 0 ? "root" : WORDS[stateOf(step, node)]}${odds}`
  const place = placeOf(view, step, node)
  const left = Math.min(place.x + 14, stage.scrollLeft + stage.clientWidth - tip.offsetWidth - 6)
  const above = place.y - tip.offsetHeight - view.row / 2 - 4
  tip.style.left = Math.max(left, 4) + "px"
  tip.style.top = (above < stage.scrollTop + 2 ? place.y + view.row / 2 + 6 : above) + "px"
}

function choose(view, node) {
  if (node === null) return
  view.chosen = view.chosen === node ? null : node
  const step = view.steps[view.shown]
  if (step) {
    paint(view, step)
    describe(view, step)
  }
}

function textOf(step, node) {
  return node === "bonus" ? step.bonus ?? "" : step.tokens[node]
}

function make(name, text, className) {
  const element = document.createElement(name)
  if (text !== undefined) element.textContent = text
  if (className) element.className = className
  return element
}

function describe(view, step) {
  const node = view.chosen ?? "bonus"
  const { layout } = view
  const title = make("h4")
  title.append(make("code", visible(textOf(step, node))), ` ${node === 0 ? "root" : WORDS[stateOf(step, node)]}`)
  const last = step.path[step.path.length - 1]
  const parent = node === "bonus" ? last : layout.parents[node]
  const lines = []
  if (node === 0) lines.push("The last committed token. It is not speculated: the target reads it together with the drafted nodes.")
  else if (node === "bonus") lines.push(bonusStory(view, step, last))
  else {
    lines.push(`Child of rank ${layout.ranks[node]} below ${quote(step.tokens[parent])}: draft probability ${percent(step.draft[node])}, ` +
      `target probability ${percent(step.target[node])}.`)
    lines.push(decisionStory(view, step, node, parent))
  }
  const body = lines.map((line) => make("p", line))
  const trials = step.trials.filter(([child]) => layout.parents[child] === parent)
  if (node !== 0 && trials.length) body.push(trialTable(step, trials, node))
  if (view.chosen === null) body.push(make("p", "Click a node to see the arithmetic of its decision."))
  view.el.details.replaceChildren(title, ...body)
}

function bonusStory(view, step, last) {
  const children = view.children[last].length
  if (step.bonus === null) return "This step ended inside the accepted path, so no bonus token was committed."
  if (!children) return `${quote(step.tokens[last])} is a leaf, so the next token comes from the target's own probabilities there. Every step yields one.`
  const who = children === 1 ? "The one child" : `All ${children} children`
  const rest = view.layout.greedy ? "the next token is the target's most likely one"
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
  if (view.layout.greedy) {
    return accepted ? "At temperature 0 the rule is equality: this is the target's most likely token, so it is accepted."
      : "At temperature 0 the rule is equality: this is not the target's most likely token, so it is rejected."
  }
  const ratio = draftMass > 0 ? targetMass / draftMass : null
  const sum = `R[s] / D[s] = ${fixed(targetMass)} / ${fixed(draftMass)} = ${ratio === null ? "∞" : fixed(ratio)}`
  return accepted ? `Accepted: r = ${fixed(uniform)} is below ${sum}.`
    : `Rejected: r = ${fixed(uniform)} is not below ${sum}. ${view.layout.after_rejection}`
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

function visible(text) {
  if (text === "") return "∅"
  return text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥")
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
}

function shorten(text, room) {
  const letters = Array.from(visible(text))
  const most = Math.max(1, Math.floor(room))
  return letters.length <= most ? letters.join("") : letters.slice(0, Math.max(most - 1, 1)).join("") + "…"
}

const quote = (text) => `“${visible(text)}”`
const count = (number, one, many = one + "s") => `${number} ${number === 1 ? one : many}`
const fixed = (value) => (value === null || value === undefined ? "–" : value >= 0.001 || value === 0 ? value.toFixed(3) : value.toExponential(1))
const brief = (value) => (value === null || value === undefined ? "–" : value.toFixed(2).replace(/^0/, ""))
const percent = (value) => (value === null || value === undefined ? "–" : value >= 0.0995 ? `${(100 * value).toFixed(0)}%` : value >= 0.001 || value === 0 ? `${(100 * value).toFixed(1)}%` : "< 0.1%")
const milliseconds = (seconds) => (seconds >= 0.1 ? `${(1000 * seconds).toFixed(0)} ms` : `${(1000 * seconds).toFixed(1)} ms`)
