// A pen for token trees: what their shapes and states look like on a canvas.

const LEAST_LETTERS = 3 // a word is not shortened further
const STATES = { A: "accepted", R: "rejected", N: "unreached" }
const TONES = { accepted: "green", rejected: "red", bonus: "violet" }

function readShape({ parents, across }) {
  const children = parents.map(() => [])
  const [ranks, depths] = [[0], [0]]
  parents.forEach((parent, node) => {
    if (parent < 0) return
    ranks[node] = children[parent].push(node)
    depths[node] = depths[parent] + 1
  })
  const leaves = across.reduce((most, place) => Math.max(most, place), 0) + 1
  return { parents, across, children, ranks, depths, leaves, depth: depths[depths.length - 1], spots: null } // breadth-first
}

const shapeOf = (view, step) => view.shapes[step.shape]

function stateOf(view, step, node) {
  if (node === "bonus") return "bonus"
  if (step.planned) return "planned"
  const isHidden = view.reveal !== null && node !== 0 && !step.trials.slice(0, Math.max(view.reveal, 0)).some(([child]) => child === node)
  return isHidden ? "unreached" : STATES[step.outcomes[node]]
}

function chancesOf(step, shape) {
  // The proposer's probability of reaching each node: the product along its path.
  return shape.parents.reduce((chances, parent, node) => {
    chances.push(parent < 0 ? 1 : chances[parent] * Math.min(1, step.draft[node] ?? 0.5))
    return chances
  }, [])
}

const breadth = (chance) => 0.7 + 4 * Math.sqrt(chance)

function colours(view) {
  // The theme's variables. Each is looked up once, because a drawing asks for the same few at every node.
  const style = getComputedStyle(view.el.tt)
  const known = new Map()
  return (name) => known.get(name) ?? known.set(name, style.getPropertyValue(name).trim()).get(name)
}

function sized(canvas, width, height) {
  // A blank canvas of this size. Its memory is allocated again only if the size has changed.
  const ratio = window.devicePixelRatio || 1
  const size = { width: Math.round(width * ratio), height: Math.round(height * ratio) }
  const pen = canvas.getContext("2d")
  if (canvas.width !== size.width || canvas.height !== size.height) {
    Object.assign(canvas, size)
    pen.face = null
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0)
  pen.clearRect(0, 0, width + 1, height + 1)
  return pen
}

const faces = new Map() // of each font, the widths of the texts measured so far
const MOST_WIDTHS = 20_000
document.fonts.addEventListener("loadingdone", () => faces.clear())

function useFont(pen, font) {
  if (pen.face?.font === font) return
  if (!faces.has(font)) faces.set(font, { font, widths: new Map() })
  pen.face = faces.get(font)
  pen.font = font
}

function widthOf(pen, text) {
  const { widths } = pen.face
  if (widths.size > MOST_WIDTHS) widths.clear()
  return widths.get(text) ?? widths.set(text, pen.measureText(text).width).get(text)
}

function drawEdge(pen, tone, from, to) {
  const start = from.x + 5
  const middle = (start + to.x) / 2
  pen.beginPath()
  pen.moveTo(start, from.y)
  pen.bezierCurveTo(middle, from.y, middle, to.y, to.x + 3, to.y)
  pen.lineWidth = breadth(to.chance)
  pen.setLineDash({ rejected: [4, 3], bonus: [2, 4] }[to.state] ?? [])
  pen.strokeStyle = tone(to.state in TONES ? `--st-${TONES[to.state]}-color` : to.state === "planned" ? "--st-primary-color" : "--st-border-color")
  pen.globalAlpha = to.opacity * ({ rejected: 0.6, planned: 0.3 + 0.6 * Math.sqrt(to.chance) }[to.state] ?? 1)
  pen.stroke()
  pen.setLineDash([])
  pen.globalAlpha = 1
}

const fontOf = (tone, size, bold = false) => `${bold ? "600 " : ""}${size}px ${tone("--st-code-font") || "monospace"}`

function shorten(pen, text, room) {
  // The text, or its beginning and "…"; null if there is no room for at least some letters.
  const letters = Array.from(visible(text))
  const fits = (end) => widthOf(pen, letters.join("") + end) <= room
  if (fits("")) return letters.join("")
  if (letters.length > 2 && letters[0] === "·") letters.shift()
  if (fits("")) return letters.join("")
  while (letters.length > LEAST_LETTERS && !fits("…")) letters.pop()
  return fits("…") ? letters.join("") + "…" : null
}

const isMarked = (view, id) => id === view.chosen || id === view.linked || Boolean(view.found?.has(id))
const oddsOf = (step, node) => `q ${brief(step.draft[node])} p ${brief(step.target[node])}`

function drawNode(view, pen, tone, step, box) {
  const { state, node, id = node } = box
  const colour = TONES[state]
  const isHere = isMarked(view, id)
  const top = box.y - box.height / 2
  pen.globalAlpha = box.opacity
  if (box.stem) drawStem(pen, tone(colour ? `--st-${colour}-color` : "--st-gray-color"), box)
  pen.beginPath()
  pen.roundRect(box.x, top, box.width, box.height, box.square ? 0 : box.dot ? box.height / 2 : 5)
  pen.fillStyle = tone("--st-background-color") // no edge shows through a box
  pen.fill()
  const strong = tone(colour ? `--st-${colour}-color` : state === "planned" ? "--st-primary-color" : "--st-gray-color")
  pen.fillStyle = box.dot ? strong : colour ? tone(`--st-${colour}-background-color`) : tone(node === 0 ? "--st-background-color" : "--st-secondary-background-color")
  pen.fill()
  pen.strokeStyle = isHere ? tone("--st-text-color") : box.both ? tone("--st-blue-color") : colour || box.dot ? strong : tone("--st-border-color")
  pen.lineWidth = isHere || box.both ? 2.5 : colour ? 1.8 : 1
  pen.setLineDash(state === "rejected" && !isHere && !box.dot ? [3, 2] : [])
  if (!box.dot || isHere || box.both) pen.stroke()
  pen.setLineDash([])
  if (!box.dot) drawWords(pen, tone, step, box, colour)
  pen.globalAlpha = 1
}

function drawStem(pen, colour, { stem: { x, y, radius }, square, y: end }) {
  // Join a word above or below the path to its node.
  pen.beginPath()
  pen.moveTo(x, y)
  pen.lineTo(x, end)
  Object.assign(pen, { strokeStyle: colour, fillStyle: colour, lineWidth: 1 })
  pen.stroke()
  pen.beginPath()
  pen.roundRect(x - radius, y - radius, 2 * radius, 2 * radius, square ? 0 : radius)
  pen.fill()
}

function drawWords(pen, tone, step, box, colour) {
  const bottom = box.y + box.height / 2
  pen.fillStyle = tone(colour ? `--st-${colour}-text-color` : "--st-text-color")
  pen.textBaseline = "middle"
  useFont(pen, fontOf(tone, box.size, Boolean(colour) && box.state !== "rejected"))
  pen.fillText(box.text, box.x + box.pad, box.odds ? box.y - box.size * 0.55 : box.y + 0.5, Math.max(box.width - 2 * box.pad - box.gauge + 2, 1))
  if (box.odds) {
    useFont(pen, fontOf(tone, box.size - 2))
    pen.fillText(box.odds, box.x + box.pad, box.y + box.size * 0.7)
  }
  if (!box.gauge) return
  for (const [value, offset, name] of [[step.draft[box.node], 10, "blue"], [step.target[box.node], 6, "orange"]]) {
    const tall = Math.max(0, Math.min(1, value || 0)) * (box.height - 4)
    pen.fillStyle = tone(`--st-${name}-color`)
    pen.fillRect(box.x + box.width - offset, bottom - 2 - tall, 3, tall)
  }
}
