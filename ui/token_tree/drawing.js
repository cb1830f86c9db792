// One step drawn: as SVG, where a node keeps its element from step to step as long as its path is in the tree, or on
// one canvas.

const SVG_NS = "http://www.w3.org/2000/svg"
const GLIDE_LIMIT = 300 // nodes; more of them moving at once would stutter
const GAUGE_COLUMN = 64 // px; a narrower one has room for the text alone
const STATES = { A: "accepted", R: "rejected", N: "unreached" }

function svg(name, parent, className) {
  const element = document.createElementNS(SVG_NS, name)
  if (className) element.setAttribute("class", className)
  parent.appendChild(element)
  return element
}

function set(element, attributes) {
  for (const name in attributes) element.setAttribute(name, attributes[name])
}

function clearDrawing(view) {
  const { el } = view
  for (const part of [el.edges, el.nodes, el["bonus-edge"]]) part.replaceChildren()
  Object.assign(view, { dressed: null, nodes: [], root: null, bonus: makeNode(view, "bonus") })
  set(view.bonus.group, { class: "node bonus" })
  view.bonusEdge = svg("path", el["bonus-edge"])
}

function dress(view, shape) {
  // Give every node of a shape its element: the one at the same path in the shape before, else a new one.
  if (view.dressed === shape) return
  const chosen = typeof view.chosen === "number" ? view.nodes[view.chosen] : null
  const nodes = []
  shape.parents.forEach((parent, node) => {
    const parts = parent < 0 ? view.root : nodes[parent].below[shape.ranks[node]]
    nodes[node] = parts ?? makeNode(view, node, parent >= 0)
    nodes[node].id = node
    if (parent < 0) view.root = nodes[node]
    else nodes[parent].below[shape.ranks[node]] = nodes[node]
  })
  nodes.forEach((parts, node) => parts.below.splice(shape.children[node].length + 1).forEach(discard))
  if (chosen) view.chosen = chosen.group.isConnected ? chosen.id : null
  view.el.nodes.append(view.bonus.group) // above the others
  Object.assign(view, { nodes, dressed: shape })
  view.el.graph.classList.toggle("glide", nodes.length <= GLIDE_LIMIT)
}

function discard(parts) {
  const gone = [parts]
  while (gone.length) {
    const { group, edge, below } = gone.pop()
    group.remove()
    edge.remove()
    gone.push(...below.filter(Boolean))
  }
}

function makeNode(view, id, hasEdge = false) {
  const group = svg("g", view.el.nodes, "node")
  const parts = { id, group, below: [], veil: svg("rect", group, "veil"), box: svg("rect", group, "box"),
    q: svg("rect", group, "q"), p: svg("rect", group, "p"), label: svg("text", group), odds: svg("text", group, "odds") }
  if (hasEdge) parts.edge = svg("path", view.el.edges)
  group.onmouseenter = () => hover(view, parts.id)
  group.onmouseleave = () => hover(view, null)
  group.onclick = () => choose(view, parts.id)
  return parts
}

function stateOf(view, step, node) {
  if (node === "bonus") return "bonus"
  const isHidden = view.reveal !== null && node !== 0 && !step.trials.slice(0, Math.max(view.reveal, 0)).some(([child]) => child === node)
  return isHidden ? "unreached" : STATES[step.outcomes[node]]
}

function showsBonus(view, step) {
  return step.bonus !== null && (view.reveal === null || view.reveal > step.trials.length)
}

function paint(view, step) {
  const shape = shapeOf(view, step)
  const spots = spotsOf(view, shape)
  const { el } = view
  el.tt.classList.toggle("dots", !spots.pills)
  el["gauge-key"].hidden = !spots.pills || spots.column < GAUGE_COLUMN
  el["found-key"].hidden = !view.looksUp
  el["both-key"].hidden = !view.both
  el["q-name"].textContent = view.looksUp ? (view.drafts ? `draft probability or ${LOOKUP}` : LOOKUP) : "draft probability"
  el.graph.toggleAttribute("hidden", shape.onCanvas)
  el.field.toggleAttribute("hidden", !shape.onCanvas)
  if (shape.onCanvas) return paintCanvas(view, step, shape, spots)
  dress(view, shape)
  const path = new Set(step.path)
  const chances = step.chances ?? chancesOf(step, shape)
  shape.parents.forEach((parent, node) => {
    const [x, y, state] = [spots.x[node], spots.y[node], stateOf(view, step, node)]
    const parts = view.nodes[node]
    if (parent >= 0) paintEdge(parts.edge, state, curve(spots, parent, x, y), breadth(chances[node]))
    paintNode(spots, parts, {
      x, y, state, text: step.tokens[node], named: path.has(node),
      q: node ? step.draft[node] ?? null : null, p: node ? step.target[node] ?? null : null, chosen: view.chosen === node,
      square: foundAt(step, node) !== null, both: Boolean(foundAt(step, node)?.drafted),
    })
  })
  const last = step.path[step.path.length - 1]
  const place = bonusPlace(view, shape, last)
  const shown = showsBonus(view, step)
  view.bonus.group.toggleAttribute("hidden", !shown)
  view.bonusEdge.toggleAttribute("hidden", !shown)
  if (!shown) return
  paintEdge(view.bonusEdge, "bonus", curve(spots, last, place.x, place.y), 2)
  paintNode(spots, view.bonus, { ...place, state: "bonus", text: step.bonus, named: true, q: null, p: null, chosen: view.chosen === "bonus" })
}

function chancesOf(step, shape) {
  // How likely the proposer thought each node to be reached: the product along its path.
  return shape.parents.reduce((chances, parent, node) => {
    chances.push(parent < 0 ? 1 : chances[parent] * Math.min(1, step.draft[node] ?? 0.5))
    return chances
  }, [])
}

const breadth = (chance) => 0.7 + 4 * Math.sqrt(chance)

function paintEdge(edge, state, line, width) {
  const wide = width.toFixed(1)
  if (edge.style.strokeWidth !== wide) edge.style.strokeWidth = wide
  if (edge.getAttribute("class") !== state) edge.setAttribute("class", state)
  if (edge.getAttribute("d") !== line) edge.setAttribute("d", line)
}

function paintNode(spots, parts, node) {
  const { group, veil, box, q, p, label, odds } = parts
  const move = `translate(${node.x}px, ${node.y}px)`
  if (group.style.transform !== move) group.style.transform = move
  group.setAttribute("class", `node ${node.state}${parts.id === 0 ? " root" : ""}${node.chosen ? " chosen" : ""}${node.both ? " both" : ""}`)
  const looks = [spots.row, spots.column, spots.pills, spots.tall, node.text, node.named, node.q, node.p, node.square, node.both].join("\n")
  if (parts.looks === looks) return
  parts.looks = looks
  if (!spots.pills) {
    const radius = Math.max(1.5, Math.min(5, spots.row * 0.42, spots.column * 0.3)) * (node.named ? 1.25 : 1)
    const place = { x: 5 - radius, y: -radius, width: 2 * radius, height: 2 * radius, rx: node.square ? 0 : radius }
    set(box, place)
    set(veil, node.both ? place : { width: 0, height: 0 })
    set(q, { width: 0, height: 0 })
    set(p, { width: 0, height: 0 })
    odds.textContent = ""
    label.textContent = node.named && spots.column >= 26 ? shorten(node.text, spots.column - radius - 10) : ""
    set(label, { x: 8 + radius, y: 0 })
    return
  }
  const gauge = node.q === null || spots.column < GAUGE_COLUMN ? 0 : 11
  const room = spots.column - 18 - gauge
  const text = shorten(node.text, room)
  const height = Math.min(spots.row - 2.5, spots.tall ? 29 : 19)
  const inner = Math.max(widthOf(text), spots.tall && gauge ? 80 : 8)
  const width = inner + 12 + gauge
  const top = -height / 2
  const rx = node.square ? 0 : 5
  set(veil, { x: 0, y: top, width, height, rx })
  set(box, { x: 0, y: top, width, height, rx })
  label.textContent = text
  set(label, { x: 6, y: spots.tall && gauge ? -6 : 0 })
  odds.textContent = spots.tall && gauge ? `q ${brief(node.q)} p ${brief(node.p)}` : ""
  set(odds, { x: 6, y: 7 })
  const bar = (value) => (gauge ? Math.max(0, Math.min(1, value || 0)) * (height - 4) : 0)
  const stand = (value, offset) => ({ x: width - offset, y: top + height - 2 - bar(value), width: 3, height: bar(value) })
  set(q, stand(node.q, 10))
  set(p, stand(node.p, 6))
}

function colours(view) {
  const style = getComputedStyle(view.el.tt)
  return (name) => style.getPropertyValue(name).trim()
}

function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1
  canvas.width = Math.round(width * ratio)
  canvas.height = Math.round(height * ratio)
  const pen = canvas.getContext("2d")
  pen.setTransform(ratio, 0, 0, ratio, 0, 0)
  pen.clearRect(0, 0, width, height)
  return pen
}

function paintCanvas(view, step, shape, spots) {
  const { el } = view
  const tone = colours(view)
  const pen = sized(el.field, view.fullWidth, view.height)
  const fill = { accepted: tone("--st-green-color"), rejected: tone("--st-red-color"), unreached: tone("--st-gray-color"),
    bonus: tone("--st-violet-color") }
  const link = (from, x, y) => {
    const middle = (spots.x[from] + 5 + x) / 2
    pen.moveTo(spots.x[from] + 5, spots.y[from])
    pen.bezierCurveTo(middle, spots.y[from], middle, y, x + 5, y)
  }
  const widths = chancesOf(step, shape).map((chance) => Math.ceil(breadth(chance)))
  const strokeEdges = (accepted, width) => {
    pen.beginPath()
    shape.parents.forEach((parent, node) => {
      if (parent >= 0 && widths[node] === width && (step.outcomes[node] === "A") === accepted) link(parent, spots.x[node], spots.y[node])
    })
    pen.strokeStyle = accepted ? fill.accepted : tone("--st-border-color")
    pen.lineWidth = width
    pen.stroke()
  }
  for (const accepted of [false, true]) for (const width of new Set(widths)) strokeEdges(accepted, width)
  const radius = Math.max(1.2, Math.min(4, spots.row * 0.42))
  for (const code of ["N", "R", "A"]) {
    pen.beginPath()
    shape.parents.forEach((_, node) => {
      if (step.outcomes[node] !== code) return
      const size = code === "A" ? Math.max(3.5, radius) : code === "R" ? Math.max(2.2, radius) : radius
      pen.moveTo(spots.x[node] + 5 + size, spots.y[node])
      pen.arc(spots.x[node] + 5, spots.y[node], size, 0, 7)
    })
    pen.globalAlpha = code === "N" ? 0.6 : 1
    pen.fillStyle = fill[STATES[code]]
    pen.fill()
    pen.globalAlpha = 1
  }
  if (step.bonus !== null) {
    const last = step.path[step.path.length - 1]
    const place = bonusPlace(view, shape, last)
    pen.beginPath()
    link(last, place.x, place.y)
    pen.strokeStyle = pen.fillStyle = fill.bonus
    pen.stroke()
    pen.beginPath()
    pen.arc(place.x + 5, place.y, 4, 0, 7)
    pen.fill()
  }
  const marked = view.linked ?? view.chosen
  if (marked !== null && marked !== undefined) {
    const place = placeOf(view, step, marked)
    pen.beginPath()
    pen.arc(place.x + 5, place.y, 7, 0, 7)
    pen.strokeStyle = tone("--st-text-color")
    pen.lineWidth = 2
    pen.stroke()
  }
}
