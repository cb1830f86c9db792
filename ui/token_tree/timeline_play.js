// Play a finished run on its timeline by the clock of its steps, and save it as an animation. Two runs share the clock.

const PACES = { "As fast as it was": 1, Slow: 0 }
const SLOW_STEP_SEC = 0.7 // duration of a usual step at slow speed
const BEAT_MS = 40 // between frames
const FRAMES = 90 // of an animation, at most
const LAST_FRAME_MS = 2500
const GROW_MS = 220 // of a step that appears

function preparePlay(view) {
  const { el } = view
  for (const name in PACES) el.speed.append(make("option", name))
  el.speed.value = "Slow"
  el.play.onclick = () => play(view, !view.beat)
  el.prev.onclick = () => stepBy(view, -1)
  el.next.onclick = () => stepBy(view, 1)
  el.scrub.oninput = () => pauseAt(view, (Number(el.scrub.value) / 1000) * lengthOf(view))
  const save = make("button", "WebP")
  Object.assign(save, { type: "button", title: "Save the run as an animation", onclick: () => saveAnimation(view, save) })
  el["save-svg"].after(save)
}

const lengthOf = (view) => Math.max(0, ...view.runs.map((run) => run.times.at(-1) ?? 0))

function stepsShown(view, run) {
  // The steps that have ended by the clock; all of them while nothing is played.
  return view.clock === null ? run.steps.length : stepsBy(run.times, view.clock)
}

function setClock(view, clock) {
  const length = lengthOf(view)
  view.clock = clock >= length ? null : Math.max(0, clock)
  view.el.scrub.value = length ? Math.round((1000 * (view.clock ?? length)) / length) : 1000
  view.el.at.textContent = milliseconds(view.clock ?? length)
}

function showAt(view, clock, isSmooth = false) {
  endGlide(view)
  setClock(view, clock)
  const tip = Math.max(...view.runs.map((run) => run.ends[stepsShown(view, run) - 1] ?? 0))
  if (view.clock !== null && view.camera.zoom > 1.001) moveCamera(view, { ...view.camera, x: view.width / 2 - LEFT - tip * columnOf(view), follows: false })
  writeSums(view)
  if (isSmooth) glide(view)
  else repaint(view)
}

function glide(view) {
  // Let new steps grow, and the camera move to where it is now. Nothing is drawn again after that.
  const { seen, camera } = view
  const isNew = (run) => stepsShown(view, run) > (seen?.steps.get(run) ?? Infinity)
  const to = { column: columnOf(view), x: camera.x }
  if (!seen || isCalm() || !(view.runs.some(isNew) || to.x !== seen.x || to.column !== seen.column)) return repaint(view)
  const glide = { had: seen.steps, began: performance.now(), goal: camera, camera, share: 0 }
  const frame = () => {
    if (view.glide !== glide) return
    const passed = Math.min(1, (performance.now() - glide.began) / GROW_MS)
    glide.share = 1 - (1 - passed) ** 2
    if (view.camera === glide.camera) { // nobody has moved it since
      const between = (part) => seen[part] + (to[part] - seen[part]) * glide.share
      moveCamera(view, { zoom: between("column") / view.fit, x: between("x"), follows: camera.follows })
      glide.camera = view.camera
    } else glide.goal = null
    if (passed === 1) view.glide = null
    else requestAnimationFrame(frame)
    repaint(view)
  }
  view.glide = glide
  frame()
}

function endGlide(view) {
  if (view.glide?.goal) moveCamera(view, view.glide.goal)
  view.glide = null
}

function pauseAt(view, clock, isSmooth = false) {
  play(view, false)
  showAt(view, clock, isSmooth)
}

const endsOf = (view) => [...new Set([0, ...view.runs.flatMap((run) => run.times)])].sort((one, other) => one - other)

function stepBy(view, by) {
  // Go to the end of the next or previous step of any run.
  const ends = endsOf(view)
  const now = view.clock ?? lengthOf(view)
  pauseAt(view, (by > 0 ? ends.find((end) => end > now + 1e-9) : ends.findLast((end) => end < now - 1e-9)) ?? now, true)
}

function rateOf(view) {
  // Seconds of the run per second of playback.
  return PACES[view.el.speed.value] || view.usual / SLOW_STEP_SEC
}

function play(view, on) {
  clearTimeout(view.beat)
  view.beat = null
  if (on && lengthOf(view)) {
    if (view.clock === null) showAt(view, 0)
    view.beat = setTimeout(tick, BEAT_MS, view, performance.now())
  }
  labelPlay(view.el.play, view.beat)
}

function tick(view, last) {
  // The picture and its figures change only when a step ends.
  const now = performance.now()
  const counts = () => view.runs.map((run) => stepsShown(view, run)).join()
  const had = counts()
  setClock(view, view.clock + (Math.min(now - last, 100) / 1000) * rateOf(view))
  if (counts() !== had) showAt(view, view.clock ?? Infinity, true)
  if (view.clock === null) play(view, false)
  else view.beat = setTimeout(tick, BEAT_MS, view, now)
}

async function saveAnimation(view, button) {
  // One frame per step of any run, or fewer for long runs, each as long as at the chosen speed.
  play(view, false)
  const [clock, length] = [view.clock, lengthOf(view)]
  const ends = endsOf(view)
  const every = Math.ceil(ends.length / FRAMES)
  const times = ends.filter((_, at) => at % every === 0 || at === ends.length - 1)
  const rate = rateOf(view)
  const frames = []
  for (const [at, time] of times.entries()) {
    button.textContent = `${percent(at / times.length)}`
    showAt(view, time)
    const blob = await new Promise((done) => pictureOf(view, 1).toBlob(done, "image/webp", 0.85))
    if (blob?.type !== "image/webp") {
      button.textContent = "not in this browser"
      return showAt(view, clock ?? length)
    }
    const ms = at + 1 < times.length ? (1000 * (times[at + 1] - time)) / rate : LAST_FRAME_MS
    frames.push([new Uint8Array(await blob.arrayBuffer()), Math.max(20, Math.round(ms))])
  }
  button.textContent = "WebP"
  showAt(view, clock ?? length)
  saveFile(new Blob(animationOf(frames, Math.round(view.width), Math.round(view.height)), { type: "image/webp" }), `${view.file}.webp`)
}

function animationOf(frames, width, height) {
  // The container of animated WebP (RFC 9649) around the image data of each frame's own file, as parts of a blob.
  const chunk = (name, parts) => {
    const size = parts.reduce((sum, part) => sum + part.length, 0)
    return [Uint8Array.from(name, (letter) => letter.charCodeAt(0)), bytes(size, 4), ...parts, new Uint8Array(size % 2)]
  }
  const size = [bytes(width - 1, 3), bytes(height - 1, 3)]
  const file = [
    Uint8Array.from("WEBP", (letter) => letter.charCodeAt(0)),
    ...chunk("VP8X", [bytes(0x02, 4), ...size]), // 2: an animation, without an alpha channel
    ...chunk("ANIM", [bytes(-1, 4), bytes(0, 2)]), // a white background, repeated forever
    ...frames.flatMap(([still, ms]) => chunk("ANMF", [bytes(0, 6), ...size, bytes(ms, 3), bytes(0x02, 1), ...imageData(still)])), // 2: no blending
  ]
  return chunk("RIFF", file)
}

const bytes = (value, count) => Uint8Array.from({ length: count }, (_, at) => (at < 4 ? (value >> (8 * at)) & 255 : 0))

function imageData(file) {
  // The chunks of a still WebP file that hold its picture; others describe it.
  const view = new DataView(file.buffer)
  const found = []
  for (let at = 12; at + 8 <= file.length; ) {
    const size = 8 + view.getUint32(at + 4, true)
    const padded = size + (size % 2)
    if (["VP8 ", "VP8L"].includes(String.fromCharCode(...file.subarray(at, at + 4)))) found.push(file.subarray(at, at + padded))
    at += padded
  }
  return found
}

function nextRejected(view) {
  // Choose the next rejected token after the chosen one, or the first one of all.
  const after = view.chosen ?? -1
  const next = view.owners.find(({ step }) => rejectedIn(step, after - step.first) >= 0)?.step
  view.chosen = null
  if (!next) return repaint(view)
  const id = next.first + rejectedIn(next, after - next.first)
  choose(view, id)
  reveal(view, id)
}
