// What every stage can do: zoom, drag, search, save the picture, full screen, and keys.

const STAGE_PARTS = ["tt", "stage", "field", "map", "find", "matches", "closer", "farther", "fit", "save-png", "save-svg", "full", "help", "keys", "tip", "wait"]
const MAPPED = 128 // nodes; larger trees have a map
const MAP = { width: 168, height: 96, gap: 8 }
const WHEEL = 0.0022 // share of the zoom per pixel
const SCROLL_MS = 400
const STEP = 1.5 // zoom of a button or key
const CLICK = 4 // px; a longer way is a drag
const PNG_SCALE = 2
const KEYS = [["/", "search a token"], ["+ −", "zoom"], ["0", "whole tree"], ["↑ ↓", "previous or next node"], ["F", "full screen"], ["?", "these keys"]]

let scrolledAt = 0 // a page that is being scrolled up must not end in a zoom
document.addEventListener("scroll", () => (scrolledAt = performance.now()), { capture: true, passive: true })

function prepareStage(view, keys = []) {
  const { el } = view
  Object.assign(view, { camera: HOME, chosen: null, linked: null, found: null, reveal: null, shapes: [], below: 28, file: "token-tree" }) // px for the tools
  listKeys(el.keys, [...keys, ...KEYS])
  el.help.onclick = () => (el.keys.hidden = !el.keys.hidden)
  el.full.onclick = () => fullScreen(view)
  el.closer.onclick = () => zoomBy(view, STEP)
  el.farther.onclick = () => zoomBy(view, 1 / STEP)
  el.fit.onclick = () => zoomBy(view, 0)
  el["save-png"].onclick = () => pictureOf(view, PNG_SCALE).toBlob((blob) => saveFile(blob, `${view.file}.png`))
  el["save-svg"].onclick = () => saveFile(new Blob([svgOf(view)], { type: "image/svg+xml" }), `${view.file}.svg`)
  el.find.oninput = () => search(view)
  el.find.onkeydown = (event) => {
    if (event.key === "Enter") nextFound(view)
    if (event.key === "Escape") {
      el.find.value = ""
      search(view)
      el.stage.focus({ preventScroll: true })
    }
    event.stopPropagation()
  }
  el.tt.addEventListener("transitionend", (event) => event.target === el.tt && event.propertyName === "color" && repaint(view)) // another theme
  el.tt.addEventListener("fullscreenchange", () => (el.full.textContent = document.fullscreenElement ? "Exit" : "Full screen"))
  followPointer(view)
}

function repaint(view) {
  if (!view.step || !view.width) return
  draw(view, sized(view.el.field, view.width, view.height))
  paintMap(view)
}

function followPointer(view) {
  const { field, stage, map, tt } = view.el
  const touching = new Map()
  let moved = 0
  const at = (event) => {
    const box = field.getBoundingClientRect()
    return [event.clientX - box.left, event.clientY - box.top]
  }
  field.onwheel = (event) => {
    const isIn = event.deltaY < 0
    // Where there is nothing to zoom, or the page can be scrolled up, the wheel scrolls the page. A touchpad's pinch,
    // which has `ctrlKey` set, always zooms.
    const page = document.fullscreenElement ? tt : document.querySelector("[data-testid=stMain]") ?? document.scrollingElement
    const isScrolling = page.scrollTop > 1 || performance.now() - scrolledAt < SCROLL_MS
    if (view.camera.zoom <= 1 && !event.ctrlKey && (isScrolling || !isIn)) return
    event.preventDefault()
    zoomAt(view, Math.exp(-event.deltaY * WHEEL), ...at(event))
    hover(view, null) // the node is elsewhere now
  }
  field.onpointerdown = (event) => {
    touching.set(event.pointerId, at(event))
    moved = 0
    if (stage.classList.contains("roams")) field.setPointerCapture(event.pointerId)
  }
  field.onpointermove = (event) => {
    const before = touching.get(event.pointerId)
    if (!before) return hoverAt(view, ...at(event))
    const now = at(event)
    const other = [...touching].find(([id]) => id !== event.pointerId)?.[1]
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]]
    moved += Math.abs(dx) + Math.abs(dy)
    touching.set(event.pointerId, now)
    if (other) {
      const apart = ([x, y]) => Math.hypot(x - other[0], y - other[1]) || 1
      zoomAt(view, apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2)
    } else if (moved > CLICK) moveCamera(view, { ...view.camera, x: view.camera.x + dx, y: view.camera.y + dy })
    if (other || moved > CLICK) hover(view, null)
  }
  field.onpointerup = field.onpointercancel = (event) => touching.delete(event.pointerId)
  field.onpointerleave = () => touching.size || hover(view, null)
  field.onclick = (event) => moved <= CLICK && choose(view, nearest(view, ...at(event)))
  map.onpointerdown = map.onpointermove = (event) => {
    if (!event.buttons) return
    const box = map.getBoundingClientRect()
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]
    const { zoom, across, down } = view.camera
    moveCamera(view, { zoom, x: view.width / 2 - x * view.fullWidth * across, y: view.height / 2 - y * view.height * down })
    hover(view, null)
  }
}

function hoverAt(view, x, y) {
  const node = view.step ? nearest(view, x, y) : null
  if (node !== view.linked) hover(view, node)
  view.el.field.style.cursor = node === null ? "" : "pointer"
}

function showTip(view, node, text) {
  const { tip } = view.el
  tip.hidden = node === null
  if (node === null) return
  tip.textContent = text
  const { x, y } = placeOf(view, view.step, node)
  const above = y - tip.offsetHeight - 18
  tip.style.left = `${Math.max(4, Math.min(x + 14, view.width - tip.offsetWidth - 6))}px`
  tip.style.top = `${above < 2 ? y + 20 : above}px`
}

function writeFigures(view, figures) {
  // The figures on the stage's upper edge: label, value, and whether it is bad.
  view.el.figures.replaceChildren(...(figures ?? []).map(([label, value, isBad]) => {
    const figure = make("span", undefined, isBad ? "bad" : "")
    figure.append(make("b", value), ` ${label}`)
    return figure
  }))
}

function zoomBy(view, factor) {
  if (!view.step) return
  if (factor) zoomAt(view, factor, view.width / 2, view.height / 2)
  else moveCamera(view, HOME)
  hover(view, null)
}

function pressKey(view, event) {
  // Handle the keys of all stages; return whether this was one.
  const keys = {
    "/": () => view.el.find.focus(), "?": () => view.el.help.click(), "+": () => zoomBy(view, STEP), "-": () => zoomBy(view, 1 / STEP), 0: () => zoomBy(view, 0),
    f: () => fullScreen(view), F: () => fullScreen(view), ArrowUp: () => chooseNext(view, -1), ArrowDown: () => chooseNext(view, 1),
  }
  keys[event.key]?.()
  return event.key in keys
}

function chooseNext(view, by) {
  const { step } = view
  if (!step) return
  const ids = [...step.tokens.keys(), ...(step.bonus === null ? [] : ["bonus"])]
  const at = ids.indexOf(view.chosen ?? (by > 0 ? ids[ids.length - 1] : ids[0]))
  view.chosen = null
  choose(view, ids[(at + by + ids.length) % ids.length])
  reveal(view, view.chosen)
}

function reveal(view, node) {
  // Move the camera to a node that is not visible.
  if (node === null || !view.el.stage.classList.contains("roams")) return
  const { x, y } = placeOf(view, view.step, node)
  if (x > 0 && x < view.width - 60 && y > 0 && y < view.height) return
  lookAt(view, view.step, node)
  hover(view, null)
}

function search(view) {
  const { el, step } = view
  const wanted = el.find.value.trim().toLowerCase()
  const isHit = (text = "") => text.toLowerCase().includes(wanted) || visible(text).toLowerCase().includes(wanted)
  const hits = wanted && step ? [...step.tokens.keys()].filter((node) => isHit(step.tokens[node])) : []
  view.found = hits.length ? new Set(hits) : null
  el.matches.textContent = wanted ? `${hits.length} found` : ""
  repaint(view)
}

function nextFound(view) {
  const hits = [...(view.found ?? [])]
  if (!hits.length) return
  const node = hits.find((hit) => typeof view.chosen === "number" && hit > view.chosen) ?? hits[0]
  view.chosen = null
  choose(view, node)
  reveal(view, node)
}

function paintMap(view) {
  // The whole tree as dots, and the visible part, for a large tree that is not wholly visible.
  const { map, stage } = view.el
  if (!map) return
  const shape = shapeOf(view, view.step)
  map.hidden = shape.parents.length <= MAPPED || !stage.classList.contains("roams")
  if (map.hidden) return
  const pen = sized(map, MAP.width, MAP.height)
  const tone = colours(view)
  const spots = spotsOf(view, shape)
  const [wide, high] = [(MAP.width - MAP.gap) / view.fullWidth, (MAP.height - MAP.gap) / view.height]
  shape.parents.forEach((_, node) => {
    const isOnPath = view.step.outcomes?.[node] === "A"
    pen.fillStyle = tone(isOnPath ? "--st-green-color" : "--st-gray-color")
    pen.fillRect(spots.x[node] * wide + MAP.gap / 2, spots.y[node] * high + MAP.gap / 2, isOnPath ? 3 : 1.5, isOnPath ? 3 : 1.5)
  })
  const { across, down, x, y } = view.camera
  pen.strokeStyle = tone("--st-primary-color")
  pen.lineWidth = 1.5
  pen.strokeRect((-x / across) * wide + 1, (-y / down) * high + 1, (view.width / across) * wide + MAP.gap - 2, (view.height / down) * high + MAP.gap - 2)
}

function saveFile(blob, name) {
  const link = make("a")
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}

function pictureOf(view, scale) {
  const canvas = make("canvas")
  canvas.width = Math.round(view.width) * scale
  canvas.height = Math.round(view.height) * scale
  const pen = canvas.getContext("2d")
  pen.scale(scale, scale)
  pen.fillStyle = colours(view)("--st-background-color")
  pen.fillRect(0, 0, view.width, view.height)
  draw(view, pen)
  return canvas
}

function svgOf(view) {
  // Draw the same picture with a pen that writes SVG.
  const size = { width: view.width, height: view.height }
  const root = document.createElementNS(SVG_NS, "svg")
  set(root, { xmlns: SVG_NS, ...size, viewBox: `0 0 ${view.width} ${view.height}` })
  set(svg("rect", root), { ...size, fill: colours(view)("--st-background-color") })
  draw(view, svgPen(root))
  return new XMLSerializer().serializeToString(root)
}

function svgPen(root) {
  let path = ""
  let dash = []
  const ruler = make("canvas").getContext("2d")
  const add = (name, attributes) => {
    const element = svg(name, root)
    set(element, { opacity: pen.globalAlpha, ...attributes })
    return element
  }
  const pen = {
    globalAlpha: 1, lineWidth: 1, fillStyle: "", strokeStyle: "", font: "", textBaseline: "",
    beginPath: () => (path = ""),
    moveTo: (x, y) => (path += `M${x},${y}`),
    lineTo: (x, y) => (path += `L${x},${y}`),
    bezierCurveTo: (...places) => (path += `C${places.join(" ")}`),
    roundRect: (x, y, width, height, r) => {
      const turn = (dx, dy) => `a${r},${r} 0 0 1 ${dx},${dy}`
      path += `M${x + r},${y}h${width - 2 * r}${turn(r, r)}v${height - 2 * r}${turn(-r, r)}h${2 * r - width}${turn(-r, -r)}v${2 * r - height}${turn(r, -r)}z`
    },
    setLineDash: (lengths) => (dash = lengths),
    stroke: () => add("path", { d: path, fill: "none", stroke: pen.strokeStyle, "stroke-width": pen.lineWidth, "stroke-dasharray": dash.join(" ") || "none" }),
    fill: () => add("path", { d: path, fill: pen.fillStyle }),
    fillRect: (x, y, width, height) => add("rect", { x, y, width, height, fill: pen.fillStyle }),
    fillText: (text, x, y, widest = Infinity) => {
      // Another viewer may have other fonts, so the length is fixed.
      const length = { textLength: Math.min(pen.measureText(text).width, widest), lengthAdjust: "spacingAndGlyphs" }
      const element = add("text", { x, y, fill: pen.fillStyle, "dominant-baseline": "central", ...length })
      element.style.font = pen.font
      element.style.whiteSpace = "pre"
      element.textContent = text
    },
    measureText: (text) => {
      ruler.font = pen.font
      return ruler.measureText(text)
    },
  }
  return pen
}
