// Methods of a race as bars of time, moved by one clock, the fastest first. Every method has its tokens when its recorded
// steps ended: nothing is smoothed. While the race runs, those that have finished stand there and the others wait.

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

function createTrack(parent) {
  const find = (name) => parent.querySelector("." + name)
  const el = Object.fromEntries(["track", "bar", "play", "speeds", "scrub", "clock", "methods", "said", "text"].map((name) => [name, find(name)]))
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
  track.level = data.level
  track.methods = data.methods.map((method) => makeMethod(method)).sort((a, b) => a.finish - b.finish)
  const waiting = data.waiting.map((name, place) => makeWaiting(name, place === 0))
  track.el.methods.replaceChildren(...track.methods.map((method) => method.row), ...waiting)
  track.end = Math.max(...track.methods.map((method) => method.finish), 0)
  track.over = waiting.length === 0
  track.el.bar.hidden = !track.over
  const fastest = track.methods.reduce((best, method) => Math.min(best, method.finish), Infinity)
  for (const method of track.methods) method.gap = method.finish - fastest
  moveTo(track, isCalm() || !track.over ? track.end : 0)
  if (!isCalm() && track.over) play(track, true)
}

function makeWaiting(name, isNext) {
  const row = piece("method waiting")
  piece("name", row).textContent = name
  piece("road", row)
  piece("figures", row).textContent = isNext ? "running" : "waits"
  return row
}

function piece(name, parent) {
  const element = document.createElement("div")
  element.className = name
  parent?.append(element)
  return element
}

function makeMethod(data) {
  const row = piece("method")
  if (data.tokens.length < data.tokens[data.tokens.length - 1]) row.classList.add("tree")
  const method = { ...data, row, finish: data.ends[data.ends.length - 1], total: data.tokens[data.tokens.length - 1], shown: null }
  piece("name", row).textContent = data.name
  method.run = piece("run", piece("road", row))
  method.figures = piece("figures", row)
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
  for (const method of track.methods) showMethod(track, method, time)
  const leader = track.methods[0]
  if (leader) track.el.text.textContent = leader.texts.slice(0, stepsBy(leader.ends, time)).join("")
  const [first, second] = track.methods
  const said = track.over && second && time >= track.end ? finishOf(track, first, second) : ""
  if (el.said.textContent !== said) el.said.textContent = said
}

function finishOf(track, first, second) {
  return first.gap === 0 && second.gap <= track.level * first.finish ? `On this prompt ${first.name} and ${second.name} are level.` : `On this prompt ${first.name} is first.`
}

function showMethod(track, method, time) {
  const done = stepsBy(method.ends, time)
  const isHome = done === method.ends.length
  method.row.classList.toggle("first", isHome && method.gap === 0)
  method.run.style.transform = `scaleX(${Math.min(time, method.finish) / track.end})`
  if (method.shown === done) return
  method.shown = done
  const tokens = done ? method.tokens[done - 1] : 0
  const rate = done ? `${(tokens / method.ends[done - 1]).toFixed(0)} tok/s` : ""
  const place = method.gap === 0 ? "first" : `+${method.gap.toFixed(2)} s`
  method.figures.textContent = isHome ? `${method.finish.toFixed(2)} s · ${place} · ${rate}` : `${tokens} tokens · ${rate}`
}
