// Methods of a race, moved by one clock. Every method has its tokens when its recorded steps ended: nothing is smoothed.

const SPEEDS = [["1×", 1], ["1/4×", 0.25], ["1/10×", 0.1]]
const KEY_SHARE = 0.02 // of the race, for one press of an arrow key
const CALM_MS = 500 // between pictures, for people who asked for less motion
const tracks = new WeakMap()

export default function raceTrack({ data, parentElement }) {
  let track = tracks.get(parentElement)
  if (!track) {
    track = createTrack(parentElement)
    tracks.set(parentElement, track)
  }
  if (data && data.epoch !== track.epoch) begin(track, data)
  return () => play(track, false)
}

const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches

function createTrack(parent) {
  const find = (name) => parent.querySelector("." + name)
  const el = Object.fromEntries(["track", "play", "speeds", "scrub", "clock", "methods", "said"].map((name) => [name, find(name)]))
  const track = { el, epoch: null, methods: [], time: 0, end: 0, speed: 1, playing: false, beat: null }
  el.play.onclick = () => play(track, !track.playing)
  el.scrub.oninput = () => moveTo(track, (Number(el.scrub.value) / 1000) * track.end)
  track.speedButtons = SPEEDS.map(([label, speed]) => {
    const button = document.createElement("button")
    button.type = "button"
    button.textContent = label
    button.title = speed === 1 ? "As fast as it was" : "Slow motion"
    button.onclick = () => setSpeed(track, speed)
    el.speeds.append(button)
    return [button, speed]
  })
  setSpeed(track, 1)
  el.track.onkeydown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return
    const moves = { ArrowLeft: track.time - KEY_SHARE * track.end, ArrowRight: track.time + KEY_SHARE * track.end, Home: 0, End: track.end }
    if (event.key in moves) moveTo(track, moves[event.key])
    else if (event.key === " " && event.target.tagName !== "BUTTON") play(track, !track.playing)
    else return
    event.preventDefault()
  }
  return track
}

function setSpeed(track, speed) {
  track.speed = speed
  for (const [button, own] of track.speedButtons) button.setAttribute("aria-pressed", String(own === speed))
}

function begin(track, data) {
  play(track, false)
  track.epoch = data.epoch
  track.methods = data.methods.map((method) => makeMethod(method))
  track.el.methods.replaceChildren(...track.methods.map((method) => method.row))
  track.end = Math.max(...track.methods.map((method) => method.finish), 0)
  const fastest = track.methods.reduce((best, method) => Math.min(best, method.finish), Infinity)
  for (const method of track.methods) method.gap = method.finish - fastest
  moveTo(track, isCalm() ? track.end : 0)
  if (!isCalm()) play(track, true)
}

function makeMethod(data) {
  const piece = (name, parent) => {
    const element = document.createElement("div")
    element.className = name
    parent?.append(element)
    return element
  }
  const row = piece("method")
  if (data.tokens.length < data.tokens[data.tokens.length - 1]) row.classList.add("tree")
  const method = { ...data, row, finish: data.ends[data.ends.length - 1], total: data.tokens[data.tokens.length - 1], shown: null }
  piece("name", row).textContent = data.name
  method.run = piece("run", piece("road", row))
  method.figures = piece("figures", row)
  method.text = document.createElement("span")
  piece("text", row).append(method.text)
  return method
}

function play(track, on) {
  track.playing = on
  clearTimeout(track.beat)
  cancelAnimationFrame(track.frame)
  if (on) {
    if (track.time >= track.end) track.time = 0
    track.last = performance.now()
    tick(track)
  }
  track.el.play.textContent = on ? "❚❚ Pause" : "▶ Play"
}

function tick(track) {
  const now = performance.now()
  show(track, Math.min(track.time + ((now - track.last) / 1000) * track.speed, track.end))
  track.last = now
  if (track.time >= track.end) return play(track, false)
  if (isCalm()) track.beat = setTimeout(() => tick(track), CALM_MS)
  else track.frame = requestAnimationFrame(() => tick(track))
}

function moveTo(track, time) {
  play(track, false)
  show(track, Math.max(0, Math.min(time, track.end)))
}

function show(track, time) {
  track.time = time
  const { el } = track
  el.scrub.value = track.end ? Math.round((1000 * time) / track.end) : 0
  el.scrub.setAttribute("aria-valuetext", `${time.toFixed(2)} seconds`)
  el.clock.textContent = `${time.toFixed(2)} of ${track.end.toFixed(2)} s`
  for (const method of track.methods) showMethod(method, time)
  const home = track.methods.filter((method) => method.finish <= time)
  const said = home.length === track.methods.length && home.length ? `${home.reduce((a, b) => (a.finish <= b.finish ? a : b)).name} wins.` : ""
  if (el.said.textContent !== said) el.said.textContent = said
}

function showMethod(method, time) {
  const done = stepsBy(method.ends, time)
  const isHome = done === method.ends.length
  method.row.classList.toggle("first", isHome && method.gap === 0)
  if (method.shown === done) return
  method.shown = done
  const tokens = done ? method.tokens[done - 1] : 0
  method.run.style.transform = `scaleX(${tokens / method.total})`
  const rate = done ? `${(tokens / method.ends[done - 1]).toFixed(0)} tok/s` : ""
  const place = method.gap === 0 ? "first" : `+${method.gap.toFixed(2)} s`
  method.figures.textContent = isHome ? `${method.finish.toFixed(2)} s · ${place} · ${rate}` : `${tokens} tokens · ${rate}`
  method.text.textContent = method.texts.slice(0, done).join("")
}

function stepsBy(ends, time) {
  // How many steps had ended: binary search in the sorted times.
  let [low, high] = [0, ends.length]
  while (low < high) {
    const middle = (low + high) >> 1
    if (ends[middle] <= time) low = middle + 1
    else high = middle
  }
  return low
}
