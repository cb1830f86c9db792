// One answer decoded without and with a tree, by one clock. All recorded times are slowed by the same factor, so both
// columns have their true relative speed.

const SPEEDS = [["Real time", 1], ["Slow", 0], ["Slower", -1]]
const PLAIN_SEC = 16 // duration of the whole text without a draft at slow speed
const FIRST_SEC = 3.2 // duration of the first steps at slow speed
const SLOW_STEPS = 3 // steps at slow speed, after which the clock accelerates
const GAIN = 0.6 // acceleration per later step
const BEAT_MS = 40 // between frames
const REST_MS = 4000 // pause before a repetition
const TIMES = 2 // number of repetitions, so that an unwatched page stops
const WORD_COLUMN = 72 // px: a word of eight letters
const DRAFTED = 0.35 // share of a step after which the tree has grown
const CHECKED = 0.65 // share of a step after which the accepted path is shown
const plays = new WeakMap()

export default function twoWays({ data, parentElement }) {
  let view = plays.get(parentElement)
  if (!view) {
    view = createPlay(parentElement)
    plays.set(parentElement, view)
  }
  if (data?.film) roll(view, data.film, data)
  else if (data && data.epoch !== view.epoch) begin(view, data)
  view.waits = data?.waits && !isCalm() // play until the film begins
  if (view.waits && view.epoch && !view.playing) play(view, true)
  view.observer ??= new ResizeObserver(() => {
    if (view.el.tt.classList.contains("filming")) drawFilm(view)
    else if (view.el.stage.clientWidth !== view.width) redraw(view)
  })
  view.observer.observe(view.el.stage)
  return () => {
    play(view, false)
    rest(view)
    view.observer.disconnect()
    view.observer = null
  }
}

const paintMap = () => {} // this stage does not zoom

function createPlay(parent) {
  const find = (name) => parent.querySelector("." + name)
  const names = ["tt", "play", "speeds", "scrub", "clock", "told", "stage", "field", "keys", "quality", "draft", "promise", "hits", "origin", "measured", "costs", "guesses"]
  const el = Object.fromEntries(names.map((name) => [name, find(name)]))
  const ways = [...parent.querySelectorAll(".way:not(.counted)")].map((way) => ({
    way, passes: way.querySelector(".passes"), typed: way.querySelector(".typed"), prompt: way.querySelector(".prompt"), body: way.querySelector(".body"), shown: -1,
  }))
  listKeys(el.keys, [["space", "play or pause"], ["← →", "previous or next pass"], ["R", "next rejected guess"], ["F", "full screen"], ["?", "these keys"]])
  const acts = [...parent.querySelectorAll(".acts li")]
  const view = { el, ways, acts, epoch: null, time: 0, speed: 0, playing: false, reveal: null, chosen: null, linked: null, shapes: [], camera: HOME }
  el.play.onclick = () => {
    view.seen = TIMES - 1
    play(view, !view.playing)
  }
  el.scrub.oninput = () => moveTo(view, (Number(el.scrub.value) / 1000) * view.end)
  view.speedButtons = SPEEDS.map(([label, speed]) => {
    const button = make("button", label)
    button.type = "button"
    button.onclick = () => setSpeed(view, speed)
    el.speeds.append(button)
    return [button, speed]
  })
  el.draft.oninput = () => suppose(view, Number(el.draft.value))
  el.measured.onclick = () => {
    el.draft.value = view.data.measured
    suppose(view, view.data.measured)
  }
  el.tt.addEventListener("transitionend", (event) => event.target === el.tt && (view.epoch ? redraw(view) : drawFilm(view))) // another theme
  el.tt.onkeydown = (event) => {
    const isElsewhere = !view.epoch || event.target.tagName === "INPUT" // without an epoch the film is playing
    if (event.altKey || event.ctrlKey || event.metaKey || isElsewhere) return
    const step = view.schedule.ends
    const at = stepsBy(step, view.time)
    const moves = { ArrowLeft: at > 1 ? step[at - 2] : 0, ArrowRight: step[at] ?? view.end, Home: 0, End: view.end }
    if (event.key in moves) moveTo(view, moves[event.key])
    else if (event.key === " " && event.target.tagName !== "BUTTON") play(view, !view.playing)
    else if (event.key.toLowerCase() === "r") moveTo(view, nextRejection(view, at))
    else if (event.key.toLowerCase() === "f") fullScreen(view)
    else if (event.key === "?") el.keys.hidden = !el.keys.hidden
    else return
    takeKey(event)
  }
  return view
}

function nextRejection(view, step) {
  // The end of the next recorded step in which a guess was rejected.
  const { steps } = view.data
  const index = steps.findIndex(({ outcomes }, at) => at >= step && outcomes.includes("R"))
  return view.schedule.ends[index] ?? view.end
}

function begin(view, data) {
  play(view, false)
  Object.assign(view, { epoch: data.epoch, data, supposed: null, time: 0, seen: 0 })
  view.recorded = data.shapes.map(readShape)
  view.texts = data.steps.flatMap((step) => step.pieces)
  const sums = (values) => values.map(((sum) => (value) => (sum += value))(0))
  view.ran = {
    ends: sums(data.steps.map(secondsOf)),
    tokens: sums(data.steps.map((step) => step.pieces.length)),
  }
  view.plainSec = data.plain_sec
  view.end = Math.max(view.plainSec * view.texts.length, view.ran.ends.at(-1))
  for (const way of view.ways) way.prompt.textContent = data.prompt
  const { quality, draft } = view.el
  quality.hidden = !data.drafts.length
  draft.max = Math.max(data.drafts.length - 1, 0)
  draft.value = data.measured
  setSpeed(view, 0)
  suppose(view, data.measured)
  if (isCalm()) moveTo(view, view.end)
  else play(view, true)
}

function suppose(view, index) {
  // Show the recorded run for the measured draft; otherwise, the planned tree at the predicted speed.
  const { data, el } = view
  const draft = data.drafts[index]
  view.supposed = index === data.measured || !draft ? null : draft
  view.least = view.supposed ? 0 : WORD_COLUMN
  if (view.supposed) draft.read ??= readShape(draft)
  view.schedule = view.supposed ? (draft.schedule ??= scheduleOf(view, draft)) : view.ran
  el.measured.hidden = !view.supposed
  el.draft.setAttribute("aria-valuetext", draft ? `first guess right ${percent(draft.first)}` : "")
  el.tt.classList.toggle("supposed", Boolean(view.supposed))
  const [tokens, speedup] = view.supposed ? [draft.tokens, draft.speedup] : [view.texts.length / data.steps.length, paceOf(view)]
  const beside = view.supposed ? " (predicted)" : data.predicted ? ` (predicted ${data.predicted.toFixed(2)}×)` : ""
  const judged = speedup < 1 ? `${beside}: slower than without` : ` on this prompt${beside}`
  el.promise.textContent = `${tokens.toFixed(1)} tokens per pass, ${speedup.toFixed(2)}× as fast${judged}`
  el.promise.classList.toggle("bad", speedup < 1)
  const planned = index === data.measured ? "" : index > data.measured ? ", its best tree" : ", same tree"
  el.hits.textContent = draft ? `first guess right ${percent(draft.first)}${planned}` : ""
  el.origin.textContent = `A pass is one run of the large model, ${(tokens / speedup).toFixed(1)} times as long with a tree. ${data.label}`
  redraw(view)
}

function paceOf(view) {
  const { ends } = view.schedule
  return (view.plainSec * view.texts.length) / ends.at(-1)
}

function scheduleOf(view, draft) {
  // The end of each step of the planned tree, and the tokens by then.
  const sec = (view.plainSec * draft.tokens) / draft.speedup
  const steps = Array.from({ length: Math.ceil(view.texts.length / draft.tokens) }, (_, step) => step + 1)
  const upTo = (step) => Math.min(Math.floor(step * draft.tokens + 1e-9), view.texts.length)
  return { ends: steps.map((step) => step * sec), tokens: steps.map(upTo) }
}

function setSpeed(view, speed) {
  view.speed = speed
  for (const [button, own] of view.speedButtons) button.setAttribute("aria-pressed", String(own === speed))
}

function rateAt(view) {
  // Seconds of the run per second of playback.
  if (view.speed === 1) return 1
  const usual = (view.plainSec * view.texts.length) / PLAIN_SEC
  const { ends } = view.schedule
  const slow = ends[0] / FIRST_SEC
  if (view.speed === -1) return slow
  const past = Math.max(0, stepsBy(ends, view.time) - SLOW_STEPS)
  return Math.min(usual, slow * (1 + GAIN * past) ** 2)
}

function play(view, on) {
  clearTimeout(view.rest)
  clearTimeout(view.frame)
  view.playing = on
  if (on) {
    if (view.time >= view.end) view.time = 0
    view.last = performance.now()
    view.frame = setTimeout(() => tick(view), BEAT_MS)
  }
  labelPlay(view.el.play, on)
}

function tick(view) {
  const now = performance.now()
  const passed = Math.min((now - view.last) / 1000, 0.1)
  view.last = now
  showAt(view, Math.min(view.time + passed * rateAt(view), view.end))
  if (view.time < view.end) view.frame = setTimeout(() => tick(view), BEAT_MS)
  else if (++view.seen < TIMES || view.waits) view.rest = setTimeout(() => play(view, true), view.waits ? BEAT_MS : REST_MS)
  else play(view, false)
}

function moveTo(view, time) {
  play(view, false)
  showAt(view, Math.max(0, Math.min(time, view.end)))
}

function redraw(view) {
  Object.assign(view, { drawn: null, shapes: [] })
  for (const way of view.ways) way.shown = -1
  showAt(view, view.time)
}

function showAt(view, time) {
  view.time = time
  const { el, ways } = view
  const plain = Math.min(Math.floor(time / view.plainSec + 1e-9), view.texts.length)
  const { ends, tokens } = view.schedule
  const done = stepsBy(ends, time)
  el.scrub.value = Math.round((1000 * time) / view.end)
  el.clock.textContent = `${milliseconds(time)}`
  type(ways[0], view, plain, plain, null)
  type(ways[1], view, done ? tokens[done - 1] : 0, done, view.supposed ? null : view.data.steps)
  ways[1].way.classList.toggle("first", done === ends.length)
  const step = Math.min(done, ends.length - 1)
  const began = step ? ends[step - 1] : 0
  drawStep(view, step, done === ends.length ? 1 : (time - began) / (ends[step] - began))
}

function type(way, view, tokens, passes, steps) {
  if (way.shown === tokens) return
  way.shown = tokens
  const each = passes > 1 || passes === 0 ? "passes" : "pass"
  way.passes.replaceChildren(`${passes} ${each} `, make("small", `for ${count(tokens, "token")}`))
  if (!steps) way.body.textContent = view.texts.slice(0, tokens).join("")
  else markSteps(way, steps.slice(0, passes))
  way.typed.scrollTop = way.typed.scrollHeight
}

function markSteps(way, steps) {
  const parts = []
  for (const step of steps) {
    const accepted = step.path.length - 1
    if (accepted) parts.push(make("span", step.pieces.slice(0, accepted).join(""), "accepted"))
    if (step.pieces.length > accepted) parts.push(make("span", step.pieces.slice(accepted).join(""), "bonus"))
  }
  way.body.replaceChildren(...parts)
}

function drawStep(view, index, share) {
  const phase = share < DRAFTED ? 0 : share < CHECKED ? 1 : 2
  const step = view.supposed ? supposedStep(view, index) : view.data.steps[index]
  const shape = view.supposed ? view.supposed.read : view.recorded[step.shape]
  if (!view.shapes[step.shape]) place(view, shape, step.shape)
  const over = share === 1
  const levels = phase ? shape.depth : Math.floor((share / DRAFTED) * (shape.depth + 1))
  const name = `${index} ${phase} ${levels} ${over}`
  if (view.drawn === name) return
  view.drawn = name
  const { tokens } = view.schedule
  const kept = tokens[index] - (index ? tokens[index - 1] : 0)
  view.reveal = phase === 2 ? null : -1
  const chances = view.supposed?.chance ?? chancesOf(step, shape)
  const opacity = view.supposed?.chance.map((chance) => 0.3 + 0.7 * chance)
  if (view.fullWidth > view.width + 1) lookAt(view, step, phase === 2 ? step.path.at(-1) : 0) // a narrow stage follows the walk
  paint(view, { ...step, chances, opacity, levels, draft: [], target: [], wordless: Boolean(view.supposed) }) // without bars, to leave space for text
  view.el.stage.classList.toggle("checked", phase === 1)
  const told = [`The small model guesses a tree of ${count(shape.parents.length - 1, "next token")}.`, "The large model checks them all in one pass.",
    `${count(kept - 1, "guess is", "guesses are")} right, and the large model adds one token: ${count(kept, "token")} from one pass.`]
  view.acts.forEach((act, at) => {
    act.textContent = told[at]
    act.classList.toggle("now", over || at === phase)
  })
}

function place(view, shape, index) {
  // Each tree takes the whole stage, to leave space for text.
  view.shapes = []
  view.shapes[index] = shape
  arrange(view)
}

function supposedStep(view, index) {
  // A step of the planned tree, with its most likely path as the accepted one.
  const { schedule } = view
  const { children, parents } = view.supposed.read
  const accepted = schedule.tokens[index] - (index ? schedule.tokens[index - 1] : 0) - 1
  const path = [0]
  while (path.length <= accepted && children[path.at(-1)].length) path.push(children[path.at(-1)][0])
  const outcomes = parents.map((_, node) => (path.includes(node) ? "A" : "N"))
  return { shape: 0, tokens: parents.map(() => ""), outcomes, path, bonus: null, trials: [] }
}
