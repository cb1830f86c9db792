// Draw timelines with the methods of a canvas.

const [SMALL, NORMAL] = [11, 12] // px of text
const MOST_NODES = 1500 // more on the stage are drawn as fringes
const ROPE = 1.6 // px added to an edge on the line

function draw(view, pen) {
  const canvas = colours(view)
  const tone = (name) => canvas(`--st-${name}`) || "monospace"
  Object.assign(view, { placed: [], ticks: [] })
  const column = columnOf(view)
  const isSaved = pen.canvas !== view.el.field
  const look = { pen, tone, canvas, column, near: nearness(column), glide: isSaved ? null : view.glide }
  const bands = bandsOf(view)
  view.runs.forEach((run, at) => run.ends?.length && drawRun(view, look, run, bands[at], view.runs.length > 1 ? "AB"[at] : ""))
  drawAxis(view, look, bands.at(-1).floor)
  if (isSaved) write(look, [...view.el.figures.children].map((figure) => figure.textContent).join("  ·  "), 12, view.height - 14, { size: NORMAL }) // a saved picture
  Object.assign(view.el.field, { placed: view.placed, ticks: view.ticks })
  if (!isSaved) view.seen = { column, x: view.camera.x, steps: new Map(view.runs.map((run) => [run, stepsShown(view, run)])) }
}

function nearness(column) {
  // 0 draws threads, 1 lists; zooming in turns one into the other.
  const share = Math.min(1, Math.max(0, (column - FAR) / (NEAR - FAR)))
  return share * share * (3 - 2 * share)
}

function drawRun(view, look, run, band, name) {
  const from = stepsBy(run.ends, tokenAt(view, -40))
  const to = stepsBy(run.ends, tokenAt(view, view.width + 40))
  const steps = run.steps.slice(Math.max(0, from - 1), Math.min(to + 1, stepsShown(view, run)))
  drawRange(view, look, band)
  // Depends on the zoom and not on the visible steps, so that scrolling does not change how they are drawn.
  look.isDense = look.column < DENSE || ((run.nodes / run.ends.at(-1)) * view.width) / look.column > MOST_NODES
  const { pen, glide } = look
  const fresh = glide ? steps.filter((step) => step.index >= glide.had.get(run)) : []
  drawSteps(view, look, run, steps.slice(0, steps.length - fresh.length), band)
  if (fresh.length) {
    // The line runs on to the right while the trees below it grow.
    const from = xOf(view, fresh[0].start - 1)
    pen.save()
    pen.beginPath()
    pen.rect(0, 0, from + (xOf(view, run.ends.at(-1) + 1) - from) * glide.share, view.height)
    pen.clip()
    drawSteps(view, { ...look, grown: glide.share }, run, fresh, band)
    pen.restore()
    pen.face = null // `restore` has also restored the font
  }
  drawPlainTime(view, look, run, band)
  if (name) write(look, name, 5, band.top + 10, { size: 13, bold: true })
}

function drawSteps(view, look, run, steps, band) {
  const strokes = new Map()
  const dots = new Map()
  const boxes = []
  for (const step of steps) {
    hang(step, shapeOf(run, step))
    if (look.isDense) drawFringe(view, look, run, step, band)
    else drawThreads(view, look, run, step, band, strokes, dots, boxes)
  }
  strokeAll(look, strokes)
  for (const step of steps) drawLine(view, look, run, step, band, dots, boxes)
  fillAll(look, dots)
  for (const { step, box } of boxes) drawNode(view, look.pen, look.canvas, step, box)
  for (const step of steps) {
    drawLeap(view, look, run, step, band)
    drawMissed(view, look, run, step, band)
  }
  drawTimes(view, look, run, steps, band)
}

function write({ pen, tone }, text, x, y, { size = SMALL, bold = false, colour = "text-color", alpha = 1, align = 0 } = {}) {
  // `align`: share of the text that is left of x.
  useFont(pen, `${bold ? "600 " : ""}${size}px ${tone("font")}`)
  pen.textBaseline = "middle"
  pen.fillStyle = tone(colour)
  pen.globalAlpha = alpha
  pen.fillText(text, align ? x - align * widthOf(pen, text) : x, y)
  pen.globalAlpha = 1
}

function spotOf(view, run, step, node, band, grown = 1) {
  // A node's place: on the line, on a thread below it, or in a list.
  const column = columnOf(view)
  if (node === "bonus") return { x: xOf(view, step.start + step.path.length - 1), y: band.line }
  const each = step.nodes[node]
  const x = xOf(view, step.start - 1 + each.at)
  if (!each.below) return { x, y: band.line }
  const share = nearness(column)
  const { leaves } = step.columns[each.at]
  const level = levelOf(run, band)
  const spread = Math.max(column * 0.7, Math.min(leaves * 3.5, column * 4))
  const thread = { x: x + ((each.leaf + 0.5) / leaves - 0.5) * spread, y: band.line + 6 + (each.below - 0.3) * level }
  const rows = rowsOf(step.columns[each.at], band)
  const list = {
    x: x - column / 2 + 8 + (each.below - 1) * Math.min(9, column * 0.07),
    y: band.line + LINE + 10 + each.row * rows.tall + each.deep * rows.deep + (each.below > 1 ? rows.deep : rows.tall) / 2,
  }
  return { x: thread.x + (list.x - thread.x) * share, y: band.line + (thread.y + (list.y - thread.y) * share - band.line) * grown }
}

// Below the trees there is room for two rows of wrong guesses.
const levelOf = (run, band) => Math.min(LEVEL, (band.forest - 3 * TEXT_ROW - 8) / run.deepest)

function rowsOf({ rows, deep }, band) {
  // The heights of a list's rows: tokens that compete for this place, and those after them.
  const room = band.forest - LINE - 14
  const tall = Math.min(ROW, room / (rows + 0.3 * deep))
  return { tall, deep: Math.min(DEEP_ROW, deep ? Math.max(0, (room - rows * tall) / deep) : 0) }
}

function drawThreads(view, look, run, step, band, strokes, dots, boxes) {
  const shape = shapeOf(run, step)
  const { column, near } = look
  const spots = []
  for (const { nodes: those } of step.columns.filter(Boolean)) for (const node of those) {
    const each = step.nodes[node]
    const spot = spotOf(view, run, step, node, band, look.grown)
    spots[node] = spot
    const parent = shape.parents[node]
    const isRejected = each.state === "rejected"
    const edge = strokeFor(strokes, isRejected ? "red" : "gray", breadth(each.chance) * (0.55 + 0.45 * near), isRejected ? 0.9 : 0.25 + 0.6 * Math.sqrt(each.chance), isRejected ? [4, 3] : [])
    if (each.below === 1) {
      const base = xOf(view, step.start - 1 + each.at)
      const far = base - column
      edge.push(bend(far + (base - column / 2 - 5 - far) * near, band.line, spot, near))
    } else edge.push(hangFrom(spots[parent], spot, near))
    placeNode(view, look, step, node, spot, band, dots, boxes)
  }
}

function bend(x, y, to, near) {
  // Leave the line sideways and bend away below.
  const across = to.x - x
  return [x, y, x + across * (0.75 - 0.25 * near), y, to.x - across * 0.5 * near, y + (to.y - y) * (0.35 + 0.65 * near), to.x, to.y]
}

function hangFrom(from, to, near) {
  const middle = (from.y + to.y) / 2
  const x = from.x + 3 * near
  return [x, from.y, x, middle + (to.y - middle) * near, to.x + (x - to.x) * near, middle + (to.y - middle) * near, to.x, to.y]
}

function placeNode(view, { pen, canvas, column, near }, step, node, spot, band, dots, boxes) {
  const each = step.nodes[node]
  const rows = rowsOf(step.columns[each.at], band)
  const height = each.below > 1 ? rows.deep : rows.tall
  const id = step.first + node
  const isHere = isMarked(view, id)
  const box = { id, node, state: each.state, opacity: each.state === "rejected" ? 1 : 0.5 + 0.5 * Math.sqrt(each.chance), square: foundAt(step, node) !== null }
  if (near > 0.6 && height >= WORD_ROW - 1) {
    const room = column - 20 - (each.below - 1) * Math.min(9, column * 0.07)
    if (wordIn(pen, canvas, step, Object.assign(box, spot), room, height - 3, each.below === 1 && column >= 112)) {
      boxes.push({ step, box })
      view.placed.push(box)
      return
    }
  }
  const radius = Math.min(3, Math.max(0.7, column * 0.1)) * (each.state === "rejected" ? 1.4 : 0.8)
  const wide = isHere ? 6 : radius
  Object.assign(box, { dot: true, x: spot.x - wide, y: spot.y, width: 2 * wide, height: 2 * wide })
  if (isHere) boxes.push({ step, box })
  else dotsFor(dots, each.state === "rejected" ? "red" : "gray", each.state === "rejected" ? 1 : box.opacity * 0.8).push(box)
  view.placed.push(box)
}

function wordIn(pen, canvas, step, box, room, tallest, withOdds) {
  // Make a box with the node's word, and its probabilities if there is room; return whether it fits.
  const hasOdds = box.node !== "bonus" && step.draft[box.node] !== undefined && box.node !== 0
  const size = tallest >= 18 ? NORMAL : SMALL
  const pad = 5
  const gauge = hasOdds && room >= 56 ? 11 : 0
  const odds = hasOdds && withOdds && tallest >= 27 ? oddsOf(step, box.node) : ""
  useFont(pen, fontOf(canvas, size))
  const text = shorten(pen, box.node === "bonus" ? step.bonus : step.tokens[box.node], room - 2 * pad - gauge)
  if (text === null) return false
  const width = Math.min(room, Math.max(widthOf(pen, text), odds ? 6 * size : 0, 8) + 2 * pad + gauge)
  Object.assign(box, { width, height: Math.min(tallest, odds ? 30 : 20), text, odds, gauge, size, pad })
  return true
}

function drawLine(view, { pen, tone, canvas, column, near }, run, step, band, dots, boxes) {
  // The accepted path on the line, as thick as it was likely, with the bonus token as a joint.
  const { path } = step
  const tokens = [...path.slice(1), ...(step.bonus === null ? [] : ["bonus"])]
  tokens.forEach((node, at) => {
    const isBonus = node === "bonus"
    const chance = isBonus ? 0.02 : step.nodes[node].chance
    const x = xOf(view, step.start + at)
    if (x < -column || x > view.width + column) return
    const thick = ROPE + breadth(chance) * (column < DENSE ? 0.7 : 1)
    pen.fillStyle = tone(isBonus ? "violet-color" : "green-color")
    pen.fillRect(x - column, band.line - thick / 2, column + 0.5, thick) // without a gap before the next one
    const id = step.first + (isBonus ? step.tokens.length : node)
    const isHere = isMarked(view, id)
    const box = { id, node, state: isBonus ? "bonus" : "accepted", opacity: 1, square: !isBonus && foundAt(step, node) !== null, token: step.start + at, x: x - column / 2 + 4, y: band.line }
    const fits = column >= FAR && wordIn(pen, canvas, step, box, column - 8 - 8 * near, 2 * LINE + 6 * near, column >= 112)
    if (!fits) {
      const radius = isHere ? 6 : isBonus ? Math.min(5, Math.max(1.6, column * 0.4)) : Math.min(3, column * 0.22)
      Object.assign(box, { dot: true, x: x - radius, width: 2 * radius, height: 2 * radius })
    }
    if (fits || isHere) boxes.push({ step, box })
    else if (isBonus || column >= 6) dotsFor(dots, isBonus ? "violet" : "green", 1).push(box)
    view.placed.push(box)
  })
}

function drawFringe(view, { pen, tone, column, grown = 1 }, run, step, band) {
  // Seen from afar: one fringe per token, as long as the longest thread and as dark as there are many.
  const level = levelOf(run, band) * grown
  const wide = Math.max(0.6, column * 0.6)
  step.columns.forEach((each, at) => {
    if (!each) return
    const x = xOf(view, step.start - 1 + at) - wide / 2
    pen.fillStyle = tone("gray-color")
    pen.globalAlpha = 0.12 + 0.4 * Math.min(1, each.nodes.length / 24)
    pen.fillRect(x, band.line, wide, each.deepest * level)
    const rejected = each.nodes.filter((node) => step.nodes[node].state === "rejected")
    if (!rejected.length) return
    pen.fillStyle = tone("red-color")
    pen.globalAlpha = 0.75
    pen.fillRect(x, band.line, wide, level * (0.7 + 1.5 * Math.sqrt(rejected.reduce((sum, node) => sum + step.nodes[node].chance, 0))))
  })
  pen.globalAlpha = 1
}

function strokeFor(strokes, colour, width, alpha, dash) {
  // Edges of about the same look are drawn together, because there can be thousands.
  const [wide, clear] = [Math.ceil(width * 2) / 2, Math.ceil(alpha * 8) / 8]
  const key = `${colour} ${wide} ${clear}`
  if (!strokes.has(key)) strokes.set(key, { colour, wide, clear, dash, edges: [] })
  return strokes.get(key).edges
}

function strokeAll({ pen, tone }, strokes) {
  for (const { colour, wide, clear, dash, edges } of [...strokes.values()].sort((one, other) => (one.colour < other.colour ? -1 : 1))) {
    pen.beginPath()
    for (const [x, y, ...curve] of edges) {
      pen.moveTo(x, y)
      pen.bezierCurveTo(...curve)
    }
    Object.assign(pen, { strokeStyle: tone(`${colour}-color`), lineWidth: wide, globalAlpha: clear })
    pen.setLineDash(dash)
    pen.stroke()
  }
  pen.setLineDash([])
  pen.globalAlpha = 1
}

function dotsFor(dots, colour, alpha) {
  const key = `${colour} ${Math.ceil(alpha * 4) / 4}`
  if (!dots.has(key)) dots.set(key, [])
  return dots.get(key)
}

function fillAll({ pen, tone }, dots) {
  for (const [key, boxes] of [...dots].sort(([one], [other]) => (one < other ? -1 : 1))) {
    const [colour, alpha] = key.split(" ")
    pen.beginPath()
    for (const box of boxes) pen.roundRect(box.x, box.y - box.height / 2, box.width, box.height, box.square ? 0 : box.height / 2)
    pen.fillStyle = tone(`${colour}-color`)
    pen.globalAlpha = Number(alpha)
    pen.fill()
  }
  pen.globalAlpha = 1
}

function describeField(view) {
  // What the picture shows, for screen readers and for scripts.
  const said = view.runs.filter((run) => run.ends?.length).map((run) => {
    const yields = run.steps.map((step) => step.pieces.length)
    return `${count(run.ends.at(-1), "token")} in ${count(yields.length, "target pass", "target passes")}, from ${Math.min(...yields)} to ${Math.max(...yields)} tokens per pass`
  })
  view.el.field.setAttribute("aria-label", `Timeline of ${said.join("; and of ")}`)
}
