// The timeline of a run: its text as one line, one place per token. Below each place hangs what else the draft guessed there,
// above it one leap per pass of the target, and at the bottom the time of each step.

const views = new WeakMap()
const [TOP, BOTTOM, HEAD, LINE] = [4, 46, 58, 13] // px: above all, for axis and tools, above the line of each run, half a box
const [LEFT, RIGHT] = [18, 26] // px
const [NEAR, FAR] = [84, 36] // px per token: from here on, nodes are words in lists, and up to here threads
const CLOSEST = 190 // px per token at the highest zoom
const TYPICAL = 30 // px per token while a run is growing
const DENSE = 4 // px per token; below, threads are drawn as one fringe per token
const [LEVEL, LEAST_LEVEL] = [48, 28] // px between the levels of a thread, and what texts above the line leave them
const PAN = 0.2 // share of the width per key
const [ROW, DEEP_ROW, WORD_ROW] = [32, 19, 15] // px; words need at least the last
const HOME = { zoom: 1, x: 0 } // the whole text

export default function runTimeline({ data, parentElement, setTriggerValue }) {
  let view = views.get(parentElement)
  if (!view) {
    view = createView(parentElement)
    views.set(parentElement, view)
  }
  view.send = setTriggerValue
  view.resized ??= new ResizeObserver(() => (view.isStale ? update(view) : measure(view) && repaint(view)))
  view.scrolled ??= new IntersectionObserver((entries) => {
    view.isAway = !entries.at(-1).isIntersecting // elsewhere on the page, or in a closed fold
    if (!view.isAway && view.isStale) update(view)
  })
  for (const observer of [view.resized, view.scrolled]) observer.observe(view.el.stage)
  receive(view, data)
  return () => {
    play(view, false)
    for (const run of view.runs) clearTimeout(run.again)
    for (const observer of [view.resized, view.scrolled]) observer.disconnect()
    Object.assign(view, { resized: null, scrolled: null })
  }
}

function createView(parent) {
  const find = (name) => parent.querySelector("." + name)
  const view = { el: Object.fromEntries([...STAGE_PARTS, "prev", "play", "next", "speed", "scrub", "at", "figures", "summary", "details", "head", "said", "arithmetic", "sums", "phases", "plain-key"].map((name) => [name, find(name)])) }
  prepareStage(view, [["space", "play or pause"], ["← →", "previous or next step"], ["R", "next rejected guess"], ["Shift + ← →", "move along the text"], ["Shift + drag", "sum a stretch"]])
  Object.assign(view, { runs: [], clock: null, beat: null, step: { tokens: [], bonus: null }, owners: [], range: null, file: "timeline", camera: { ...HOME } })
  view.el.map = null
  view.el.find.parentElement.querySelector(".fit").title = "Show the whole text (0)"
  view.el.stage.setAttribute("aria-label", "Timeline")
  view.el.tt.onkeydown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return
    if (event.target === view.el.speed) return
    const moves = { ArrowLeft: -1, ArrowRight: 1 }
    if (event.key in moves && event.shiftKey) moveTo(view, view.camera.x - moves[event.key] * PAN * view.width)
    else if (event.key in moves) stepBy(view, moves[event.key])
    else if (event.key === "Home" || event.key === "End") pauseAt(view, event.key === "Home" ? 0 : Infinity)
    else if (event.key === " " && event.target.tagName !== "BUTTON") play(view, !view.beat)
    else if (event.key.toLowerCase() === "r") nextRejected(view)
    else if (event.key === "Escape") sumStretch(view, null)
    else if (!pressKey(view, event)) return
    takeKey(event)
  }
  preparePlay(view)
  followStretch(view)
  return view
}

// What arrives.

function receive(view, data) {
  const begins = data.runs.length !== view.runs.length || data.runs.some((message, at) => message.about && message.epoch !== view.runs[at].epoch)
  const had = view.runs.map((run) => run.steps.length)
  view.plays ??= data.plays ?? false
  view.hasEnded ||= view.running && !data.running
  view.runs.length = Math.min(view.runs.length, data.runs.length)
  view.running = data.running
  data.runs.forEach((message, at) => receiveRun(view, (view.runs[at] ??= { steps: [], ends: [], times: [], asked: {} }), message, at))
  if (begins) begin(view)
  const known = view.runs.filter((run) => run.steps.length)
  const grew = view.runs.some((run, at) => run.steps.length !== had[at])
  view.el.tt.classList.toggle("empty", !known.length)
  view.el.tt.classList.toggle("running", data.running)
  view.el.stage.parentElement.classList.toggle("compared", view.runs.length > 1)
  view.el.wait.textContent = data.running ? "Waiting for the first step" : "No steps were decoded"
  if (!known.length || !(grew || view.hasEnded)) return
  view.isStale = true
  if (!view.isAway) update(view)
}

function update(view) {
  // Draw what arrived. A growing run is followed while its end is visible, and shown whole when it has ended.
  const followed = view.camera.follows
  if (!measure(view)) return
  if (view.hasEnded && followed) moveCamera(view, HOME)
  else if (view.running && followed) moveCamera(view, { zoom: Math.max(1, TYPICAL / view.fit), x: -Infinity, follows: true })
  view.usual = longestUsual(view.runs.flatMap((run) => run.steps.map(secondsOf)))
  Object.assign(view, { isStale: false, hasEnded: false })
  describeField(view)
  writeKey(view)
  writeSummary(view)
  showAt(view, view.clock ?? Infinity, true)
  if (view.plays && !isCalm()) play(view, true)
  view.plays = false
}

function receiveRun(view, run, message, at) {
  run.ask = (have) => view.send("resync", { run: at, epoch: run.wanted, have })
  Object.assign(run, { wanted: message.epoch, baseline: message.baseline }) // decoding without the tree goes on during the run
  if (run.wanted !== run.epoch) {
    if (!message.about) return request(run, 0)
    Object.assign(run, { epoch: message.epoch, about: message.about, steps: [], shapes: [], ends: [], times: [], letters: 0, nodes: 0, missed: [], asked: {} })
  }
  for (const shape of message.shapes) run.shapes[shape.index] ??= readShape(shape)
  run.deepest = run.shapes.reduce((most, shape) => Math.max(most, shape.depth), 1)
  for (const step of message.steps) if (step.index === run.steps.length && shapeOf(run, step)) append(view, run, step)
  const have = run.steps.length
  if (have < message.from || (!view.running && have < message.total)) request(run, have)
}

function begin(view) {
  play(view, false)
  Object.assign(view, { clock: null, step: { tokens: [], bonus: null }, owners: [], range: null, chosen: null, found: null, linked: null, seen: null, glide: null, camera: { ...HOME, follows: true } })
  for (const run of view.runs) for (const step of run.steps) number(view, run, step)
  view.el.details.hidden = true
}

function append(view, run, step) {
  step.start = run.ends.at(-1) ?? 0
  run.ends.push(step.start + step.pieces.length)
  run.times.push((run.times.at(-1) ?? 0) + secondsOf(step))
  run.letters += step.pieces.join("").length
  run.nodes += step.tokens.length
  run.steps.push(step)
  const wrong = shapeOf(run, step).children[step.path.at(-1)].find((child) => step.outcomes[child] === "R")
  if (wrong !== undefined) step.missed = { text: step.tokens[wrong], index: run.missed.push(step) - 1 }
  number(view, run, step)
}

function number(view, run, step) {
  // Nodes of all steps have consecutive numbers, the last one of a step being its bonus token, so that they can be searched.
  step.first = view.step.tokens.length
  view.owners.push({ run, step })
  for (const text of step.tokens) view.step.tokens.push(text)
  view.step.tokens.push(step.bonus ?? "")
}

function ownerOf(view, id) {
  const { run, step } = view.owners[stepsBy(view.owners.map((owner) => owner.step.first), id) - 1]
  return { run, step, node: id - step.first === step.tokens.length ? "bonus" : id - step.first }
}

function hang(step, shape) {
  // For each node: its depth below the path, the token beside which it hangs, and its place in that token's threads and list.
  if (step.nodes) return
  const path = new Set(step.path)
  const nodes = []
  const columns = []
  const chances = chancesOf(step, shape)
  shape.parents.forEach((parent, node) => {
    const below = path.has(node) ? 0 : nodes[parent].below + 1
    nodes.push({ below, at: below > 1 ? nodes[parent].at : shape.depths[node], chance: chances[node], state: STATES[step.outcomes[node]] })
  })
  const waiting = [0]
  while (waiting.length) {
    const node = waiting.pop()
    waiting.push(...shape.children[node].toReversed())
    const each = nodes[node]
    if (!each.below) continue
    const column = (columns[each.at] ??= { nodes: [], rows: 0, deep: 0, leaves: 0, deepest: 0 })
    Object.assign(each, { row: column.rows, deep: column.deep, leaf: column.leaves })
    column.nodes.push(node)
    column.deepest = Math.max(column.deepest, each.below)
    if (each.below > 1) column.deep++
    else column.rows++
    if (!shape.children[node].length) column.leaves++
  }
  for (const { nodes: those } of columns.filter(Boolean)) for (const node of those.toReversed()) {
    const below = shape.children[node]
    if (below.length) nodes[node].leaf = below.reduce((sum, child) => sum + nodes[child].leaf, 0) / below.length
  }
  Object.assign(step, { nodes, columns })
}

// The camera. It only moves sideways.

function measure(view) {
  const { stage } = view.el
  if (!view.runs.some((run) => run.steps.length) || !stage.clientWidth) return false
  Object.assign(view, { width: stage.clientWidth, height: stage.clientHeight })
  endGlide(view)
  const fit = view.fit
  view.tokens = view.runs.reduce((most, run) => Math.max(most, run.ends?.at(-1) ?? 0), 1)
  view.fit = Math.min(CLOSEST, (view.width - LEFT - RIGHT) / (view.tokens + 1))
  const { zoom, x, follows } = view.camera
  moveCamera(view, { zoom: zoom > 1 && fit ? (zoom * fit) / view.fit : zoom, x, follows })
  return true
}

function moveCamera(view, { zoom, x, follows }) {
  const near = Math.min(Math.max(1, zoom), Math.max(1, CLOSEST / view.fit))
  const most = Math.min(0, view.width - LEFT - RIGHT - (view.tokens + 1) * view.fit * near)
  const within = Math.min(0, Math.max(most, x))
  view.camera = { zoom: near, across: near, down: 1, x: within, y: 0, follows: follows ?? within <= most + 1 }
  view.el.stage.classList.toggle("roams", near > 1.001)
}

function zoomAt(view, factor, x) {
  const before = view.camera
  const near = Math.min(Math.max(1, before.zoom * factor), Math.max(1, CLOSEST / view.fit))
  moveCamera(view, { zoom: near, x: x - LEFT - ((x - LEFT - before.x) * near) / before.zoom })
}

function moveTo(view, x) {
  moveCamera(view, { ...view.camera, x, follows: undefined })
  repaint(view)
}

const columnOf = (view) => view.fit * view.camera.zoom
const xOf = (view, token) => LEFT + view.camera.x + (token + 1) * columnOf(view) // token -1: the end of the prompt
const tokenAt = (view, x) => Math.floor((x - LEFT - view.camera.x) / columnOf(view) - 0.5)

function bandsOf(view) {
  // The vertical parts of each run: the line of text, the room for its trees, and the times.
  const each = (view.height - TOP - BOTTOM) / view.runs.length
  const times = Math.max(30, Math.min(72, each * 0.18))
  return view.runs.map((run, at) => {
    const rows = textRows(run, columnOf(view), each - HEAD - times - 22 - run.deepest * LEAST_LEVEL)
    const head = HEAD + TEXT_ROW * Math.max(0, rows - 1)
    const top = TOP + at * each
    return { top, line: top + head, forest: each - head - times - 14, floor: top + each - 6, times, rows: Math.floor(rows) }
  })
}

function lookAt(view, _, id) {
  moveTo(view, view.camera.x + view.width / 2 - placeOf(view, _, id).x)
}

function placeOf(view, _, id) {
  const { run, step, node } = ownerOf(view, id)
  const band = bandsOf(view)[view.runs.indexOf(run)]
  hang(step, shapeOf(run, step))
  return spotOf(view, run, step, node, band)
}

function nearest(view, x, y) {
  const inside = view.placed?.findLast((box) => !box.dot && x >= box.x && x <= box.x + box.width && Math.abs(y - box.y) <= box.height / 2)
  if (inside) return inside.id
  let [best, least] = [null, 12 ** 2]
  for (const box of view.placed ?? []) {
    const distance = Math.max(0, Math.abs(box.x + box.width / 2 - x) - box.width / 2) ** 2 + (box.y - y) ** 2
    if (box.dot && distance < least) [best, least] = [box.id, distance]
  }
  return best
}

// What is asked.

function followStretch(view) {
  // Dragging over the times, or anywhere with Shift, sums a stretch; other drags move the camera.
  const { field } = view.el
  const { onclick, onpointerdown, onpointermove, onpointerup, onwheel } = field
  let began = null
  let isSumming = false
  const at = (event) => tokenAt(view, event.clientX - field.getBoundingClientRect().left)
  const isInTimes = (event) => {
    const y = event.clientY - field.getBoundingClientRect().top
    return bandsOf(view).some((band) => y > band.floor - band.times && y < band.floor + 18)
  }
  field.onclick = (event) => isSumming || onclick(event)
  field.onpointerdown = (event) => {
    isSumming = event.shiftKey || isInTimes(event)
    if (!isSumming) return onpointerdown(event)
    began = at(event)
    field.setPointerCapture(event.pointerId)
    sumStretch(view, [began, began + 1])
  }
  field.onpointermove = (event) => {
    if (began === null) {
      onpointermove(event)
      if (!event.buttons && isInTimes(event)) field.style.cursor = "col-resize"
      return
    }
    const now = at(event)
    sumStretch(view, [Math.min(began, now), Math.max(began, now) + 1])
  }
  field.onpointerup = field.onpointercancel = (event) => {
    began = null
    onpointerup(event)
  }
  field.onwheel = (event) => {
    showTip(view, (view.linked = null))
    if (Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return onwheel(event)
    event.preventDefault()
    moveTo(view, view.camera.x - event.deltaX)
  }
}

function hover(view, id) {
  view.linked = id
  repaint(view)
  if (id === null) return showTip(view, null)
  const { step, node } = ownerOf(view, id)
  const odds = node === "bonus" ? "" : `\n${isDrafted(step, node) ? "draft" : LOOKUP} ${percent(step.draft[node])} · target ${percent(step.target[node])}`
  showTip(view, id, `${visible(textOf(step, node))}  ${WORDS[stateOf(view, step, node)]}${odds}`)
}

const nodeAt = (view) => view.chosen

function choose(view, id) {
  if (view.whole) return choose(view.whole, view.base + id) // from a table of the explanation
  if (id === null) return
  view.chosen = view.chosen === id ? null : id
  view.el.details.hidden = view.chosen === null
  repaint(view)
  if (view.chosen === null) return
  const { run, step, node } = ownerOf(view, id)
  const { el } = view
  describe({ el, about: run.about, shapes: run.shapes, chosen: node, reveal: null, whole: view, base: step.first }, step)
}
