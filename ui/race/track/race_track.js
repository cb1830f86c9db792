// Draws the methods of a race as lanes on a shared time axis. Tokens appear exactly when their recorded steps ended,
// without smoothing. While the race runs, lanes are filled at once, because a replay would slow the race down.

const SPEEDS = [["1×", 1], ["1/4×", 0.25], ["1/10×", 0.1]]
const KEY_SHARE = 0.02 // fraction of the race moved by one press of an arrow key
const CALM_MS = 500 // interval between updates for users who prefer reduced motion
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
  const el = Object.fromEntries(["track", "bar", "play", "speeds", "scrub", "clock", "lanes", "said", "text"].map((name) => [name, find(name)]))
  const track = { el, epoch: null, lanes: [], time: 0, end: 0, speed: 1, playing: false, beat: null }
  el.play.onclick = () => play(track, !track.playing)
  el.scrub.oninput = () => moveTo(track, (Number(el.scrub.value) / 1000) * track.end)
  track.speedButtons = SPEEDS.map(([label, speed]) => {
    const button = document.createElement("button")
    button.type = "button"
    button.textContent = label
    button.title = speed === 1 ? "Real time" : "Slow motion"
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
  track.verdict = data.verdict
  track.lanes = data.lanes.map((lane) => makeLane(track, lane))
  track.lanes.find((lane) => lane.name === data.running)?.row.classList.add("running")
  track.el.lanes.replaceChildren(...track.lanes.map((lane) => lane.row))
  track.end = Math.max(...track.lanes.map((lane) => lane.finish), 0)
  const over = data.verdict !== ""
  track.el.bar.hidden = !over
  if (over) track.lanes[0].row.classList.add("first")
  moveTo(track, isCalm() || !over ? track.end : 0)
  if (!isCalm() && over) play(track, true)
}

function piece(name, parent, tag = "div") {
  const element = document.createElement(tag)
  element.className = name
  parent?.append(element)
  return element
}

function makeLane(track, data) {
  const row = piece("lane")
  const lane = { ...data, row, finish: data.ends.at(-1) ?? 0 }
  if (data.tokens.length < data.tokens.at(-1)) row.classList.add("tree")
  if (data.slower) row.classList.add("slower")
  lane.button = piece("name", row, "button")
  lane.button.type = "button"
  lane.button.textContent = data.name
  lane.run = piece("run", piece("road", row))
  lane.said = piece("figures", row)
  row.onclick = () => {
    track.picked = data.name
    showText(track)
  }
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
  for (const lane of track.lanes) showLane(track, lane)
  showText(track)
  const verdict = time >= track.end ? track.verdict : ""
  if (el.said.textContent !== verdict) el.said.textContent = verdict
}

function showText(track) {
  // Show the text of the picked lane, of the winner, or of the lane that was filled last.
  const { lanes, el, verdict } = track
  const shown = lanes.find((lane) => lane.name === track.picked) ?? (verdict ? lanes[0] : lanes.findLast((lane) => lane.finish))
  for (const lane of lanes) lane.button.setAttribute("aria-pressed", String(lane === shown))
  el.text.textContent = shown ? shown.texts.slice(0, stepsBy(shown.ends, track.time)).join("") : ""
  if (track.playing) el.text.scrollTop = el.text.scrollHeight
}

function showLane(track, lane) {
  const done = stepsBy(lane.ends, track.time)
  const isHome = done === lane.ends.length
  const tokens = lane.tokens[done - 1] ?? 0
  lane.row.classList.toggle("home", isHome)
  lane.run.style.transform = `scaleX(${Math.min(track.time, lane.finish) / track.end || 0})`
  lane.said.textContent = isHome ? lane.figures : `${tokens} tokens · ${(tokens / (lane.ends[done - 1] ?? 1)).toFixed(0)} tok/s`
}
