// The live token tree. Python sends what a run is once (an "epoch"), each shape of tree once, and then only new steps; this
// file keeps the history, shows one step at a time and asks for a resync when something is missing.

const PLAY_MS = 420 // per step
const SLOW_MS = 750 // per decision
const views = new WeakMap()
const ASK_AGAIN_MS = 500
const FIRST_LOOK_MS = 1200
const FRAME_MS = 700 // between two of the steps that came at once
const MOST_REQUESTS = 12 // for the same step

export default function liveTree(component) {
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
    stopWaiting(view)
    view.timer = null
    view.observer.disconnect()
    view.observer = null
  }
}

function createView(parent) {
  const find = (name) => parent.querySelector("." + name)
  const names = ["tt", "prev", "play", "next", "slow", "scrub", "at", "link", "size", "lanes", "phases", "growth", "growth-key", "caption", "stage", "graph", "edges",
    "bonus-edge", "nodes", "field", "tip", "wait", "counts", "text", "prompt", "body", "details", "gauge-key", "q-name", "found-key", "both-key",
    "left-out", "left-out-list"]
  const view = { el: Object.fromEntries(names.map((name) => [name, find(name)])) }
  Object.assign(view, { epoch: null, steps: [], shapes: [], asked: {}, spread: false, slow: false, reveal: null, timer: null })
  const { el } = view
  el.prev.onclick = () => show(view, view.shown - 1)
  el.next.onclick = () => show(view, view.shown + 1)
  el.play.onclick = () => play(view, !view.timer)
  el.slow.onclick = () => goSlow(view, !view.slow)
  el.link.onclick = () => copyLink(view)
  el.scrub.oninput = () => show(view, Number(el.scrub.value))
  el.size.onclick = () => {
    view.spread = !view.spread
    el.size.textContent = view.spread ? "Fit" : "Spread out"
    arrange(view)
    refresh(view)
  }
  el.tt.onkeydown = (event) => {
    const onButton = event.target.tagName === "BUTTON"
    const moves = { ArrowLeft: view.shown - 1, ArrowRight: view.shown + 1, Home: 0, End: view.steps.length - 1 }
    const nodes = { ArrowUp: -1, ArrowDown: 1 }
    if (event.altKey || event.ctrlKey || event.metaKey) return
    if (event.key in moves) show(view, moves[event.key])
    else if (event.key in nodes) chooseNext(view, nodes[event.key])
    else if (event.key === " " && !onButton) play(view, !view.timer)
    else return
    event.preventDefault()
  }
  const pickStep = (event) => {
    if (event.buttons !== 1 || !view.steps.length) return
    const across = event.clientX - el.lanes.getBoundingClientRect().left
    show(view, Math.floor(across / laneWidth(view)))
  }
  for (const chart of [el.lanes, el.growth]) chart.onpointerdown = chart.onpointermove = pickStep
  el.field.onmousemove = (event) => hover(view, nearest(view, event))
  el.field.onmouseleave = () => hover(view, null)
  el.field.onclick = (event) => choose(view, nearest(view, event))
  return view
}

function observeSize(view) {
  view.observer = new ResizeObserver(() => {
    if (!view.steps.length || view.el.stage.clientWidth === view.width) return
    arrange(view)
    refresh(view)
  })
  view.observer.observe(view.el.stage)
}

function receive(view, data) {
  view.wanted = data.epoch
  if (data.epoch !== view.epoch) {
    if (!data.about) return request(view, 0)
    begin(view, data)
  }
  const had = view.steps.length
  const shapesHad = view.shapes.length
  for (const shape of data.shapes) view.shapes[shape.index] ??= readShape(shape)
  for (const step of data.steps) {
    const known = view.steps[step.index]
    if (known?.lean && !step.lean) Object.assign(known, step, { lean: false })
    else if (step.index === view.steps.length && shapeOf(view, step)) view.steps.push(step)
  }
  view.running = data.running
  view.el.tt.classList.toggle("running", data.running)
  const have = view.steps.length
  const lean = data.running ? -1 : view.steps.findIndex((step) => step.lean)
  if (have < data.from || (!data.running && have < data.total)) request(view, have)
  else if (lean >= 0) request(view, lean)
  view.el.tt.classList.toggle("empty", !have)
  view.el.wait.textContent = data.waiting || (data.running ? "Waiting for the first step" : "No steps were decoded")
  for (let i = had; i < have; i++) appendText(view, view.steps[i])
  view.el.scrub.max = Math.max(have - 1, 0)
  if (view.shapes.length > shapesHad) arrange(view)
  view.looksUp ||= view.steps.slice(had).some((step) => step.found_at)
  view.drafts ||= view.steps.slice(had).some((step) => step.tokens.some((_, node) => isDrafted(step, node)))
  view.both ||= view.steps.slice(had).some((step) => step.found_at?.some((found) => found?.drafted))
  view.reads ||= view.steps.slice(had).some((step) => step.read_wait_sec > 0)
  if (view.goal !== null && have > view.goal) {
    show(view, view.goal)
    view.goal = null
  } else if ((have > had || (have && !view.running)) && view.follow && !view.timer) follow(view, had, data.interval_sec)
  else refresh(view)
}

function follow(view, had, seconds) {
  // While a run goes on, a few of the steps that came at once are shown one after the other, until the next ones come, which
  // is in `seconds` seconds. In between only the tree and the text are drawn: the engine may need the processor.
  const fresh = view.steps.length - had
  const frames = view.running ? Math.max(1, Math.min(fresh, Math.floor((seconds * 1000) / FRAME_MS))) : 1
  const frame = (number) => {
    const between = number > 1 && number < frames && view.chosen === null
    show(view, had - 1 + Math.ceil((fresh * number) / frames), null, between)
    view.follow = true
    if (number < frames) view.pacer = setTimeout(frame, FRAME_MS, number + 1)
  }
  frame(1)
}

function request(view, have) {
  // A lost step is asked for until it comes, twice a second, but never forever: the server may no longer have it. It always
  // has the shapes. Messages that arrive meanwhile do not ask again: the answer to the first request is on its way.
  const name = `${view.wanted}:${have}`
  if (view.asking === name) return
  view.asked[name] = (view.asked[name] || 0) + 1
  if (view.epoch === view.wanted && view.asked[name] > MOST_REQUESTS) return
  view.asking = name
  clearTimeout(view.again)
  setTimeout(() => view.ask(have), 0)
  view.again = setTimeout(() => {
    view.asking = null
    if (view.epoch !== view.wanted || view.steps.length === have || view.steps[have]?.lean) request(view, have)
  }, ASK_AGAIN_MS)
}

function stopWaiting(view) {
  for (const wait of [view.again, view.pacer, view.look]) clearTimeout(wait)
  view.asking = null
}

function begin(view, data) {
  play(view, false)
  stopWaiting(view)
  view.el["left-out"].hidden = true
  // A short run is over before the page asks next: the component asks once itself.
  const look = () => view.running && view.ask(view.steps.length)
  if (data.running && data.interval_sec * 1000 > FIRST_LOOK_MS) view.look = setTimeout(look, FIRST_LOOK_MS)
  Object.assign(view, { epoch: data.epoch, about: data.about, goal: data.about.at, asked: {} })
  Object.assign(view, { steps: [], shapes: [], rows: new Map(), reads: false, looksUp: false, drafts: false, both: false }) // reads: some step waited for weights
  Object.assign(view, { shown: -1, follow: true, chosen: null, linked: null })
  view.el.link.hidden = !data.about.link
  goSlow(view, false)
  view.el.prompt.textContent = data.about.prompt
  view.el.body.replaceChildren()
  view.el.details.replaceChildren()
  clearDrawing(view)
}

function show(view, index, reveal = null, brief = false) {
  // `reveal`: how many of the step's decisions are shown, one more for the bonus token; null for the whole step.
  if (!view.steps.length) return
  clearTimeout(view.pacer)
  view.shown = Math.max(0, Math.min(index, view.steps.length - 1))
  view.follow = view.shown === view.steps.length - 1
  view.linked = null
  view.reveal = reveal
  refresh(view, brief)
}

function play(view, on) {
  clearInterval(view.timer)
  view.timer = null
  if (on && view.steps.length) {
    const first = view.shown >= view.steps.length - 1 ? 0 : view.shown
    show(view, first, startOf(view))
    view.timer = setInterval(() => tick(view), view.slow ? SLOW_MS : PLAY_MS)
  }
  view.el.play.textContent = view.timer ? "❚❚ Pause" : "▶ Play"
  view.el.play.setAttribute("aria-label", view.timer ? "Pause" : "Play")
}

function startOf(view) {
  return view.slow ? 0 : null
}

function tick(view) {
  const isLast = view.shown >= view.steps.length - 1
  const start = startOf(view)
  if (view.slow && view.reveal !== null && view.reveal <= view.steps[view.shown].trials.length) show(view, view.shown, view.reveal + 1)
  else if (!isLast) show(view, view.shown + 1, start)
  else play(view, false)
}

function goSlow(view, slow) {
  view.slow = slow
  view.el.slow.setAttribute("aria-pressed", String(slow))
  if (view.timer) play(view, true)
}

function copyLink(view) {
  const { link } = view.el
  const address = new URL(window.location.href)
  address.searchParams.set("run", view.about.link)
  address.searchParams.set("step", String(view.shown + 1))
  window.history.replaceState(window.history.state, "", address)
  const say = (words) => {
    link.textContent = words
    setTimeout(() => (link.textContent = "Link"), 1500)
  }
  // without a secure origin there is no clipboard; the address bar has the link all the same
  const copied = navigator.clipboard?.writeText(address.href) ?? Promise.reject(new Error("no clipboard"))
  copied.then(() => say("Copied"), () => say("In the address bar"))
}

function chooseNext(view, by) {
  const step = view.steps[view.shown]
  if (!step) return
  const ids = [...step.tokens.keys(), ...(step.bonus === null ? [] : ["bonus"])]
  const at = ids.indexOf(view.chosen ?? (by > 0 ? ids[ids.length - 1] : ids[0]))
  view.chosen = null
  choose(view, ids[(at + by + ids.length) % ids.length])
}

function refresh(view, brief = false) {
  const { el } = view
  const step = view.steps[view.shown]
  el.at.textContent = step ? `step ${view.shown + 1} of ${view.steps.length}` : ""
  el.scrub.value = Math.max(view.shown, 0)
  if (!brief) {
    drawLanes(view)
    drawGrowth(view)
  }
  el.caption.textContent = step && view.reveal !== null ? captionOf(view, step) : ""
  if (!step) return
  paint(view, step)
  countTokens(view)
  markText(view)
  if (brief) return
  describePhases(view, step)
  describe(view, step)
  describeLeftOut(view, step)
}

function hover(view, node) {
  const step = view.steps[view.shown]
  if (!step) return
  view.linked = node
  const shape = shapeOf(view, step)
  const spots = spotsOf(view, shape)
  if (shape.onCanvas) paintCanvas(view, step, shape, spots)
  else {
    view.nodes.forEach((parts, id) => parts.group.classList.toggle("linked", id === node))
    view.bonus.group.classList.toggle("linked", node === "bonus")
  }
  for (const [id, row] of view.rows) row.classList.toggle("linked", id === node)
  for (const item of step.spans || []) item.span.classList.toggle("linked", node !== null && item.node === node)
  const { tip, stage } = view.el
  tip.hidden = node === null
  if (node === null) return
  const odds = typeof node === "number" && node > 0 ? `\n${isDrafted(step, node) ? "draft" : LOOKUP} ${percent(step.draft[node])} · target ${percent(step.target[node])}` : ""
  const passage = foundAt(step, node) ? "\n" + passageOf(foundAt(step, node)).join("\n") : ""
  tip.textContent = `${visible(textOf(step, node))}  ${node === 0 ? "root" : WORDS[stateOf(view, step, node)]}${odds}${passage}`
  const place = placeOf(view, step, node)
  const left = Math.min(place.x + 14, stage.scrollLeft + stage.clientWidth - tip.offsetWidth - 6)
  const above = place.y - tip.offsetHeight - spots.row / 2 - 4
  tip.style.left = Math.max(left, 4) + "px"
  tip.style.top = (above < stage.scrollTop + 2 ? place.y + spots.row / 2 + 6 : above) + "px"
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
