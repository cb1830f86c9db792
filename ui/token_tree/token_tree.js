// The live token tree. Python sends what a run is once (an "epoch"), each shape of tree once, and then only new steps; this
// file keeps the history, shows one step at a time and asks for a resync when something is missing.

const PLAY_MS = 420 // per step
const SLOW_MS = 900 // per decision
const READ_MS = 2 * SLOW_MS // for what was proposed
const SLOW_STEPS = 3 // that a run which plays by itself shows decision by decision
const SPEEDS = { "Each decision": "decisions", "Each step": "steps", "1/10 speed": 0.1, "True speed": 1 }
const views = new WeakMap()
const ASK_AGAIN_MS = 500
const FIRST_LOOK_MS = 1200
const FRAME_MS = 1000 // between two of the steps that came at once
const MOST_REQUESTS = 12 // for the same step

export default function liveTree(component) {
  const { data, parentElement, setTriggerValue } = component
  let view = views.get(parentElement)
  if (!view) {
    view = createView(parentElement)
    views.set(parentElement, view)
  }
  view.ask = (have) => setTriggerValue("resync", { epoch: view.wanted, have })
  view.steer = (wish) => setTriggerValue("steer", wish)
  if (!view.observer) observeSize(view)
  if (data) receive(view, data)
  return () => {
    play(view, false)
    stopWaiting(view)
    view.observer.disconnect()
    view.observer = null
  }
}

function createView(parent) {
  const find = (name) => parent.querySelector("." + name)
  const names = ["tt", "bar", "prev", "play", "next", "speed", "scrub", "at", "link", "size", "full", "times", "lanes", "phases", "growth", "growth-key", "caption", "stage",
    "graph", "edges", "bonus-edge", "nodes", "field", "tip", "wait", "counts", "text", "prompt", "body", "details", "gauge-key", "q-name", "found-key", "both-key",
    "left-out", "left-out-list", "head", "next-rejected", "said", "arithmetic", "sums"]
  const view = { el: Object.fromEntries(names.map((name) => [name, find(name)])) }
  Object.assign(view, { epoch: null, steps: [], shapes: [], asked: {}, spread: false, reveal: null, timer: null })
  const { el } = view
  el.prev.onclick = () => goTo(view, view.shown - 1)
  el.next.onclick = () => goTo(view, view.shown + 1)
  el.play.onclick = () => pressPlay(view)
  for (const name in SPEEDS) el.speed.append(make("option", name))
  el.speed.value = "Each step"
  el.speed.onchange = () => setSpeed(view, el.speed.value)
  el.link.onclick = () => copyLink(view)
  el["next-rejected"].onclick = () => nextRejected(view)
  el.scrub.oninput = () => goTo(view, Number(el.scrub.value))
  el.size.onclick = () => {
    view.spread = !view.spread
    el.size.textContent = view.spread ? "Fit" : "Spread out"
    arrange(view)
    refresh(view)
  }
  el.full.onclick = () => (document.fullscreenElement ? document.exitFullscreen() : el.tt.requestFullscreen())
  el.bar.onclick = (event) => event.detail && event.target.tagName === "BUTTON" && el.tt.focus({ preventScroll: true }) // so that space plays
  el.times.ontoggle = () => refresh(view)
  el.tt.onkeydown = (event) => {
    if (event.target === el.speed) return
    const onButton = ["BUTTON", "SUMMARY"].includes(event.target.tagName)
    const moves = { ArrowLeft: view.shown - 1, ArrowRight: view.shown + 1, Home: 0, End: view.steps.length - 1 }
    const nodes = { ArrowUp: -1, ArrowDown: 1 }
    if (event.altKey || event.ctrlKey || event.metaKey) return
    if (event.key in moves) goTo(view, moves[event.key])
    else if (event.key in nodes) chooseNext(view, nodes[event.key])
    else if (event.key === " " && !onButton) pressPlay(view)
    else return
    event.preventDefault()
  }
  const pickStep = (event) => {
    if (event.buttons !== 1 || !view.steps.length) return
    const across = event.clientX - el.lanes.getBoundingClientRect().left
    goTo(view, Math.floor(across / laneWidth(view)))
  }
  for (const chart of [el.lanes, el.growth]) chart.onpointerdown = chart.onpointermove = pickStep
  el.field.onmousemove = (event) => hover(view, nearest(view, event))
  el.field.onmouseleave = () => hover(view, null)
  el.field.onclick = (event) => choose(view, nearest(view, event))
  return view
}

function observeSize(view) {
  const { stage } = view.el
  view.observer = new ResizeObserver(() => {
    if (!view.steps.length || stage.clientWidth === view.width) return
    arrange(view)
    refresh(view)
  })
  view.observer.observe(stage)
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
  const ended = !data.running && (view.running || !had)
  view.running = data.running
  view.held = data.held ?? null
  view.link = data.link
  view.el.link.hidden = !data.link
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
  if (view.steps.slice(had).some((step) => rejectedIn(step) >= 0)) view.el["next-rejected"].hidden = false
  view.reads ||= view.steps.slice(had).some((step) => step.read_wait_sec > 0)
  if (ended && view.about.plays && view.follow && have > 1 && view.chosen === null && !isCalm()) playByItself(view)
  else if (view.goal !== null && have > view.goal) {
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
  Object.assign(view, { epoch: data.epoch, about: data.about, goal: data.about.at ?? null, asked: {} })
  Object.assign(view, { steps: [], shapes: [], rows: new Map(), reads: false, looksUp: false, drafts: false, both: false }) // reads: some step waited for weights
  Object.assign(view, { shown: -1, follow: true, chosen: null, linked: null })
  view.el.prompt.textContent = data.about.prompt
  view.el.body.replaceChildren()
  for (const name of ["next-rejected", "arithmetic"]) view.el[name].hidden = true
  for (const part of [view.el.head.firstChild, view.el.said, view.el.sums]) part.replaceChildren()
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

function goTo(view, index) {
  // Where the reader wants to go: past the last step of a run that waits, the engine takes one more.
  play(view, false)
  if (index >= view.steps.length && isHeld(view)) view.steer({ next: view.held })
  else show(view, index)
}

const isHeld = (view) => view.running && view.held !== null && view.held === view.steps.length
const isAtHead = (view) => view.running && view.follow

function pressPlay(view) {
  // One key for a run that goes on, which the engine holds and lets go, and for what is played again.
  if (view.timer || !isAtHead(view)) play(view, !view.timer)
  else view.steer(isHeld(view) ? { on: true } : { hold: true })
}

function play(view, on) {
  clearTimeout(view.timer)
  view.timer = null
  view.byItself = false
  if (on && view.steps.length) {
    view.owed = 0
    show(view, view.shown >= view.steps.length - 1 ? 0 : view.shown, startOf(view))
    playOn(view)
  }
  labelPlay(view)
}

function playByItself(view) {
  setSpeed(view, "Each decision")
  view.shown = view.steps.length
  play(view, true)
  view.byItself = true
}

function labelPlay(view) {
  const plays = Boolean(view.timer) || (isAtHead(view) && !isHeld(view))
  view.el.play.textContent = plays ? "❚❚ Pause" : "▶ Play"
  view.el.play.setAttribute("aria-label", plays ? "Pause" : "Play")
}

const paceOf = (view) => SPEEDS[view.el.speed.value]

function startOf(view) {
  return paceOf(view) === "decisions" ? 0 : null
}

function playOn(view) {
  const pace = paceOf(view)
  const began = performance.now()
  const ms = { decisions: view.reveal === 0 ? READ_MS : SLOW_MS, steps: PLAY_MS }[pace] ?? Math.max(30, (1000 * secondsOf(view.steps[view.shown])) / pace)
  view.timer = setTimeout(() => tick(view, performance.now() - began), ms)
}

function tick(view, passed) {
  const pace = paceOf(view)
  const last = view.steps.length - 1
  let next = view.shown + 1
  if (pace === "decisions" && view.reveal !== null && view.reveal <= view.steps[view.shown].trials.length) {
    show(view, view.shown, view.reveal + 1)
    return playOn(view)
  }
  if (typeof pace === "number") { // as many steps as ended in that time
    view.owed += (passed * pace) / 1000 - secondsOf(view.steps[view.shown])
    while (next < last && view.owed >= secondsOf(view.steps[next])) view.owed -= secondsOf(view.steps[next++])
  }
  if (view.shown >= last) return play(view, false)
  if (view.byItself && next >= SLOW_STEPS) view.el.speed.value = "Each step"
  show(view, next, startOf(view))
  playOn(view)
}

const secondsOf = (step) => step.seconds.reduce((sum, part) => sum + part, 0)

function setSpeed(view, name) {
  view.el.speed.value = name
  if (view.timer) play(view, true)
}

function copyLink(view) {
  const { link } = view.el
  const address = new URL(window.location.href)
  address.searchParams.set("run", view.link)
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
  if (!brief && el.times.open) {
    drawLanes(view)
    drawGrowth(view)
  }
  el.caption.textContent = step ? captionOf(view, step) : ""
  labelPlay(view)
  if (!step) return
  paint(view, step)
  bringIntoView(view, step)
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

function bringIntoView(view, step) {
  // Where the tree is wider than its place: what is decided now, or where the step ended.
  const { stage } = view.el
  if (stage.scrollWidth <= stage.clientWidth + 1 && stage.scrollHeight <= stage.clientHeight + 1) return
  const place = placeOf(view, step, nodeAt(view, step))
  stage.scrollTo({ left: place.x - stage.clientWidth / 2, top: place.y - stage.clientHeight / 2 })
}

function nodeAt(view, step) {
  // What the reader chose, what is decided at this moment of a slow play, or where the step ended.
  if (view.chosen !== null) return view.chosen
  if (view.reveal === null || view.reveal > step.trials.length) return step.bonus === null ? step.path.at(-1) : "bonus"
  return view.reveal === 0 ? 0 : step.trials[view.reveal - 1][0]
}

function choose(view, node) {
  if (node === null) return
  play(view, false)
  if (view.reveal !== null) show(view, view.shown) // what is said of the node is of the whole step
  view.chosen = view.chosen === node ? null : node
  const step = view.steps[view.shown]
  if (step) {
    paint(view, step)
    describe(view, step)
  }
}

const rejectedIn = (step, after = 0) => step.tokens.findIndex((_, node) => node > after && step.outcomes[node] === "R")

function nextRejected(view) {
  // In the step shown, after the node chosen, or in the first step after it that has one; after the last from the start.
  for (let ahead = 0; ahead <= view.steps.length; ahead++) {
    const index = (view.shown + ahead) % view.steps.length
    const node = rejectedIn(view.steps[index], ahead || typeof view.chosen !== "number" ? 0 : view.chosen)
    if (node < 0) continue
    play(view, false)
    show(view, index)
    view.chosen = null
    return choose(view, node)
  }
}

function textOf(step, node) {
  return node === "bonus" ? step.bonus ?? "" : step.tokens[node]
}
