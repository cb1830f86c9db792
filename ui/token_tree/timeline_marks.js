// Draw what surrounds a timeline's text and trees: the target's passes, the times, the selected stretch and the axis.

const LEAP = 26 // px, the highest leap
const [TEXT_ROW, MOST_ROWS] = [13, 5] // px
const [LETTER, MISSED] = [6.7, 70] // px of a letter, and of a wrong guess
const AXIS_GAP = 70 // px between numbers of the axis

function textRows(run, column, room) {
  // The number of rows above the line that the texts of all passes need. From afar they have no room, and nearby the
  // tokens have boxes.
  const needed = (1.1 * (run.letters * LETTER + run.steps.length * LETTER)) / (run.ends.at(-1) * column)
  const most = Math.max(1, Math.min(MOST_ROWS, room / TEXT_ROW))
  const rows = needed <= most ? Math.max(1, Math.ceil(needed)) : Math.max(0, 2 * most - needed)
  return rows * (1 - nearness(column))
}

function drawLeap(view, look, run, step, band) {
  // A pass of the target leaps from one joint to the next: a tick where it begins, and the number of tokens.
  const { pen, tone, column, near } = look
  const [left, right] = [xOf(view, step.start - 1), xOf(view, step.start + step.pieces.length - 1)]
  const foot = band.line - 7 - near * (LINE - 2)
  const wide = right - left
  const top = Math.min(LEAP, 3 + 1.9 * Math.sqrt(wide)) + (near > 0.5 ? 0 : 2)
  const few = step.pieces.length === 1 && step.bonus !== null // not cut by the end of the text
  pen.beginPath()
  pen.moveTo(left, foot)
  pen.bezierCurveTo(left + wide * 0.2, foot - top * 1.33, right - wide * 0.2, foot - top * 1.33, right, foot)
  pen.fillStyle = tone(few ? "red-color" : "green-color")
  pen.globalAlpha = few ? 0.25 : 0.3 * (1 - 1 / step.pieces.length)
  pen.fill()
  pen.moveTo(left, foot + 3)
  pen.lineTo(left, foot - 4)
  view.ticks.push({ x: left, tokens: step.pieces.length })
  Object.assign(pen, { strokeStyle: tone(few ? "red-color" : "text-color"), lineWidth: column < DENSE ? 0.8 : 1.4, globalAlpha: 0.75 })
  pen.stroke()
  pen.globalAlpha = 1
  const [from, to] = [Math.max(left, 0), Math.min(right, view.width)]
  if (to - from >= 16) write(look, String(step.pieces.length), (from + to) / 2, foot - top * 0.45, { align: 0.5, bold: true, colour: few ? "red-text-color" : "text-color" })
  if (!band.rows) return
  const next = run.steps[step.index + band.rows]
  const y = foot - LEAP - 10 - (band.rows - 1 - (step.index % band.rows)) * TEXT_ROW
  if (!writeInRow(look, step.pieces.join("").trim(), left, y, next ? xOf(view, next.start - 1) : view.width, few ? "red" : "")) return
  pen.globalAlpha = 0.2
  pen.fillRect(left, y + 6, 1, foot - y - 6)
  pen.globalAlpha = 1
}

function drawMissed(view, look, run, step, band) {
  // The wrong guess at the end of a pass, where the target wrote the bonus token instead.
  if (!band.rows || !step.missed) return
  const rows = Math.min(MOST_ROWS, Math.ceil((run.missed.length * MISSED) / (run.ends.at(-1) * look.column)))
  const y = band.line + 16 + run.deepest * levelOf(run, band) + (step.missed.index % rows) * TEXT_ROW
  if (y > band.floor - band.times - TEXT_ROW) return
  const x = (each) => xOf(view, each.start + each.path.length - 1)
  const next = run.missed[step.missed.index + rows]
  writeInRow(look, `✗ ${step.missed.text.trim()}`, x(step) - 3, y, next ? x(next) : view.width, "red")
}

function writeInRow({ pen, tone, canvas }, text, x, y, end, colour) {
  useFont(pen, fontOf(canvas, SMALL))
  const short = end - x < 20 ? null : shorten(pen, text, end - x - 6)
  if (short === null) return false
  pen.fillStyle = tone(colour ? `${colour}-text-color` : "text-color")
  pen.textBaseline = "middle"
  pen.fillText(short.replaceAll("·", " "), x, y)
  return true
}

function drawTimes(view, look, run, steps, band) {
  // Columns of each step's phases, and what the step gained.
  const { pen, tone, column } = look
  const scale = scaleOf(view, band)
  const plain = plainSecondsOf(run)
  for (const step of steps) {
    const left = xOf(view, step.start - 0.5)
    const wide = column * step.pieces.length - (column * step.pieces.length > 6 ? 1.5 : 0)
    let floor = band.floor
    phaseSeconds(step).forEach((seconds, phase) => {
      const tall = Math.min(seconds * scale, Math.max(0, floor - (band.floor - band.times + 14)))
      pen.fillStyle = tone(`${PHASES[phase][1]}-color`)
      pen.fillRect(left, floor - tall, wide, tall)
      floor -= tall
    })
    const speed = plain ? (plain * step.pieces.length) / secondsOf(step) : null
    const label = speed === null ? milliseconds(secondsOf(step)) : `${speed.toFixed(1)}×`
    const [from, to] = [Math.max(left, 0), Math.min(left + wide, view.width)]
    if (to - from >= 9 * label.length - 8) write(look, label, (from + to) / 2, floor - 7, { align: 0.5, bold: true, colour: label.startsWith("0") ? "red-text-color" : "text-color" })
  }
}

const scaleOf = (view, band) => (band.times - 16) / view.usual // pixels per second

function drawPlainTime(view, { pen, tone }, run, band) {
  const plain = plainSecondsOf(run)
  if (!plain) return
  const y = band.floor - plain * scaleOf(view, band)
  pen.beginPath()
  pen.moveTo(0, y)
  pen.lineTo(view.width, y)
  Object.assign(pen, { strokeStyle: tone("text-color"), lineWidth: 1, globalAlpha: 0.7 })
  pen.setLineDash([2, 3])
  pen.stroke()
  pen.setLineDash([])
  pen.globalAlpha = 1
}

function drawRange(view, { pen, tone }, band) {
  if (!view.range) return
  const [from, to] = view.range
  pen.fillStyle = tone("primary-color")
  pen.globalAlpha = 0.13
  pen.fillRect(xOf(view, from - 0.5), band.top + 2, xOf(view, to - 0.5) - xOf(view, from - 0.5), band.floor - band.top - 2)
  pen.globalAlpha = 1
}

function drawAxis(view, look, floor) {
  const unit = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((each) => each * look.column >= AXIS_GAP) ?? 2000
  const [first, last] = [Math.max(0, tokenAt(view, 0)), Math.min(view.tokens, tokenAt(view, view.width) + 1)]
  for (let token = Math.ceil((first + 1) / unit) * unit; token <= last; token += unit) {
    write(look, `${token}${token === unit ? (unit === 1 ? " token" : " tokens") : ""}`, xOf(view, token - 1), floor + 9, { align: token === unit ? 0.1 : 0.5, alpha: 0.7 })
  }
}
