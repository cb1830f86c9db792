// Lanes of a race, moved by one clock. Every lane has its tokens when its recorded steps ended: nothing is smoothed.

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
  const el = Object.fromEntries(["track", "play", "speeds", "scrub", "clock", "lanes", "said"].map((name) => [name, find(name)]))
  const track = { el, epoch: null, lanes: [], time: 0, end: 0, speed: 1, playing: false, beat: null }
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
  track.lanes = data.lanes.map((lane) => makeLane(lane))
  track.el.lanes.replaceChildren(...track.lanes.map((lane) => lane.row))
  track.end = Math.max(...track.lanes.map((lane) => lane.finish), 0)
  const fastest = track.lanes.reduce((best, lane) => Math.min(best, lane.finish), Infinity)
  for (const lane of track.lanes) lane.gap = lane.finish - fastest
  moveTo(track, isCalm() ? track.end : 0)
  if (!isCalm()) play(track, true)
}

function makeLane(data) {
  const piece = (name, parent) => {
    const element = document.createElement("div")
    element.className = name
    parent?.append(element)
    return element
  }
  const row = piece("lane")
  if (data.tokens.length < data.tokens[data.tokens.length - 1]) row.classList.add("tree")
  const lane = { ...data, row, finish: data.ends[data.ends.length - 1], total: data.tokens[data.tokens.length - 1], shown: null }
  piece("name", row).textContent = data.name
  lane.run = piece("run", piece("road", row))
  lane.figures = piece("figures", row)
  lane.text = document.createElement("span")
  piece("text", row).append(lane.text)
  return lane
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
  for (const lane of track.lanes) showLane(lane, time)
  const home = track.lanes.filter((lane) => lane.finish <= time)
  const said = home.length === track.lanes.length && home.length ? `${home.reduce((a, b) => (a.finish <= b.finish ? a : b)).name} wins.` : ""
  if (el.said.textContent !== said) el.said.textContent = said
}

function showLane(lane, time) {
  const done = stepsBy(lane.ends, time)
  const isHome = done === lane.ends.length
  lane.row.classList.toggle("first", isHome && lane.gap === 0)
  if (lane.shown === done) return
  lane.shown = done
  const tokens = done ? lane.tokens[done - 1] : 0
  lane.run.style.transform = `scaleX(${tokens / lane.total})`
  const pace = done ? `${(tokens / lane.ends[done - 1]).toFixed(0)} tok/s` : ""
  const place = lane.gap === 0 ? "first" : `+${lane.gap.toFixed(2)} s`
  lane.figures.textContent = isHome ? `${lane.finish.toFixed(2)} s · ${place} · ${pace}` : `${tokens} tokens · ${pace}`
  lane.text.textContent = lane.texts.slice(0, done).join("")
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
