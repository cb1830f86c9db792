// The live token tree. Python sends the facts about a run (an "epoch") and each tree shape once, and then only new steps.
// This file stores the history, shows one step at a time and requests a resync if something is missing.

const PLAY_MS = 420 // per step
const SLOW_MS = 900 // per decision
const READ_MS = 2 * SLOW_MS // for the proposals
const SLOW_STEPS = 3 // shown decision by decision when a run plays automatically
const SPEEDS = { "Each decision": "decisions", "Each step": "steps", "1/10 speed": 0.1, "True speed": 1 }
const views = new WeakMap()
const FIRST_LOOK_MS = 1200
const FRAME_MS = 1000 // between steps of one message

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
  const names = [...STAGE_PARTS, "bar", "prev", "play", "next", "speed", "scrub", "at", "link", "times", "lanes", "phases", "growth", "growth-key", "figures", "caption",
    "counts", "text", "prompt", "body", "details", "gauge-key", "q-name", "found-key", "both-key", "left-out", "left-out-list", "head", "next-rejected", "said", "arithmetic", "sums"]
  const view = { el: Object.fromEntries(names.map((name) => [name, find(name)])) }
  Object.assign(view, { epoch: null, steps: [], asked: {}, timer: null })
  prepareStage(view, [["space", "play or pause"], ["← →", "previous or next step"], ["R", "next rejected guess"]])
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
  el.bar.onclick = (event) => event.detail && event.target.tagName === "BUTTON" && el.tt.focus({ preventScroll: true }) // so that the space key plays
  el.times.ontoggle = () => refresh(view)
  el.tt.onkeydown = (event) => {
    if (event.target === el.speed || event.altKey || event.ctrlKey || event.metaKey) return
    const onButton = ["BUTTON", "SUMMARY"].includes(event.target.tagName)
    const moves = { ArrowLeft: view.shown - 1, ArrowRight: view.shown + 1, Home: 0, End: view.steps.length - 1 }
    if (event.key in moves) goTo(view, moves[event.key])
    else if (event.key === " " && !onButton) pressPlay(view)
    else if (event.key.toLowerCase() === "r") nextRejected(view)
    else if (!pressKey(view, event)) return
    takeKey(event)
  }
  const pickStep = (event) => {
    if (event.buttons !== 1 || !view.steps.length) return
    const across = event.clientX - el.lanes.getBoundingClientRect().left
    goTo(view, Math.floor(across / laneWidth(view)))
  }
  for (const chart of [el.lanes, el.growth]) chart.onpointerdown = chart.onpointermove = pickStep
  return view
}

function observeSize(view) {
  const { stage } = view.el
  view.observer = new ResizeObserver(() => {
    if (!view.steps.length || (stage.clientWidth === view.width && stage.clientHeight === view.height)) return
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
  writeFigures(view, data.figures)
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
  // During a run, a few steps of each message are shown one by one until the next message, due in `seconds` seconds.
  const fresh = view.steps.length - had
  const frames = view.running ? Math.max(1, Math.min(fresh, Math.floor((seconds * 1000) / FRAME_MS))) : 1
  const frame = (number) => {
    show(view, had - 1 + Math.ceil((fresh * number) / frames))
    view.follow = true
    labelPlay(view.el.play, isMoving(view))
    if (number < frames) view.pacer = setTimeout(frame, FRAME_MS, number + 1)
  }
  frame(1)
}

function stopWaiting(view) {
  for (const wait of [view.again, view.pacer, view.look]) clearTimeout(wait)
  view.asking = null
}

function begin(view, data) {
  play(view, false)
  stopWaiting(view)
  view.el["left-out"].hidden = true
  // A short run ends before the next poll, so the component requests an update once.
  const look = () => view.running && view.ask(view.steps.length)
  if (data.running && data.interval_sec * 1000 > FIRST_LOOK_MS) view.look = setTimeout(look, FIRST_LOOK_MS)
  Object.assign(view, { epoch: data.epoch, about: data.about, goal: data.about.at ?? null, asked: {} })
  Object.assign(view, { steps: [], shapes: [], rows: new Map(), reads: false, looksUp: false, drafts: false, both: false }) // reads: a step has waited for weights
  Object.assign(view, { shown: -1, follow: true, chosen: null, linked: null })
  view.el.prompt.textContent = data.about.prompt
  view.el.body.replaceChildren()
  Object.assign(view, { camera: HOME, moment: null, drawnShape: null, step: null, placed: [] })
  for (const name of ["next-rejected", "arithmetic"]) view.el[name].hidden = true
  for (const part of [view.el.head.firstChild, view.el.said, view.el.sums]) part.replaceChildren()
}

function show(view, index, reveal = null) {
  // `reveal`: the number of decisions shown, plus one for the bonus token; null for the whole step.
  if (!view.steps.length) return
  clearTimeout(view.pacer)
  view.shown = Math.max(0, Math.min(index, view.steps.length - 1))
  view.follow = view.shown === view.steps.length - 1
  view.linked = null
  view.reveal = reveal
  refresh(view)
}

function goTo(view, index) {
  // Go to a step; past the last step of a waiting run, the engine takes one more.
  play(view, false)
  if (index >= view.steps.length && isHeld(view)) view.steer({ next: view.held })
  else show(view, index)
}

const isHeld = (view) => view.running && view.held !== null && view.held === view.steps.length
const isAtHead = (view) => view.running && view.follow
const isMoving = (view) => Boolean(view.timer) || (isAtHead(view) && !isHeld(view))

function pressPlay(view) {
  // One key pauses and continues a live run, and plays a finished one. The explanations then follow the walk again.
  if (!isMoving(view)) view.chosen = null
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
  labelPlay(view.el.play, isMoving(view))
}

function playByItself(view) {
  setSpeed(view, "Each decision")
  view.shown = view.steps.length
  play(view, true)
  view.byItself = true
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
  if (typeof pace === "number") { // the steps that ended in that time
    view.owed += (passed * pace) / 1000 - secondsOf(view.steps[view.shown])
    while (next < last && view.owed >= secondsOf(view.steps[next])) view.owed -= secondsOf(view.steps[next++])
  }
  if (view.shown >= last) return play(view, false)
  if (view.byItself && next >= SLOW_STEPS) view.el.speed.value = "Each step"
  show(view, next, startOf(view))
  playOn(view)
}

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
  // The clipboard requires a secure origin; without one, the address bar still has the link.
  const copied = navigator.clipboard?.writeText(address.href) ?? Promise.reject(new Error("no clipboard"))
  copied.then(() => say("Copied"), () => say("In the address bar"))
}

function refresh(view) {
  const { el } = view
  const step = view.steps[view.shown]
  el.at.textContent = step ? `step ${view.shown + 1} of ${view.steps.length}` : ""
  el.scrub.value = Math.max(view.shown, 0)
  if (el.times.open) {
    drawLanes(view)
    drawGrowth(view)
  }
  el.caption.textContent = step ? captionOf(view, step) : ""
  labelPlay(view.el.play, isMoving(view))
  if (!step) return
  el["found-key"].hidden = !view.looksUp
  el["both-key"].hidden = !view.both
  el["q-name"].textContent = view.looksUp ? (view.drafts ? `draft probability or ${LOOKUP}` : LOOKUP) : "draft probability"
  keepChosen(view, shapeOf(view, step))
  const moment = `${view.shown} ${view.reveal} ${view.width}`
  if (moment !== view.moment && el.stage.classList.contains("roams")) lookAt(view, step, nodeAt(view, step)) // but a message moves nothing
  view.moment = moment
  paint(view, step)
  el["gauge-key"].hidden = !view.placed.some((box) => box.gauge)
  countTokens(view)
  markText(view)
  describePhases(view, step)
  describe(view, step)
  describeLeftOut(view, step)
}

function hover(view, node) {
  const step = view.steps[view.shown]
  if (!step) return
  view.linked = node
  repaint(view)
  for (const [id, row] of view.rows) row.classList.toggle("linked", id === node)
  for (const item of step.spans || []) item.span.classList.toggle("linked", node !== null && item.node === node)
  if (node === null) return showTip(view, null)
  const odds = typeof node === "number" && node > 0 ? `\n${isDrafted(step, node) ? "draft" : LOOKUP} ${percent(step.draft[node])} · target ${percent(step.target[node])}` : ""
  const passage = foundAt(step, node) ? "\n" + passageOf(foundAt(step, node)).join("\n") : ""
  showTip(view, node, `${visible(textOf(step, node))}  ${node === 0 ? "root" : WORDS[stateOf(view, step, node)]}${odds}${passage}`)
}

function nodeAt(view, step) {
  // The chosen node, the current decision of slow playback, or the end of the step.
  if (view.chosen !== null) return view.chosen
  if (view.reveal === null || view.reveal > step.trials.length) return step.bonus === null ? step.path.at(-1) : "bonus"
  return view.reveal === 0 ? 0 : step.trials[view.reveal - 1][0]
}

function choose(view, node) {
  if (node === null) return
  play(view, false)
  if (view.reveal !== null) show(view, view.shown) // explanations of a node refer to the whole step
  view.chosen = view.chosen === node ? null : node
  const step = view.steps[view.shown]
  if (step) {
    repaint(view)
    describe(view, step)
  }
}

function nextRejected(view) {
  // Search after the chosen node in this step, then in later steps, then from the start.
  for (let ahead = 0; ahead <= view.steps.length; ahead++) {
    const index = (view.shown + ahead) % view.steps.length
    const node = rejectedIn(view.steps[index], ahead || typeof view.chosen !== "number" ? 0 : view.chosen)
    if (node < 0) continue
    play(view, false)
    show(view, index)
    view.chosen = null
    choose(view, node)
    return reveal(view, node)
  }
}
