// Why a tree that takes shape while it is drafted has its shape: what its policy weighed, node by node, and what it left out.

const GROUNDS = {
  cost: (rule) => (rule === "draws" ? "below the least worth a draw" : "one more node would cost more"),
  size: () => "the tree is full",
  depth: () => "no further level may be",
  pass: () => "no further pass was made",
  floor: () => "nodes are kept for deeper levels",
  children: () => "no more children at once",
}

function whyStory(why, node) {
  const [score, chance, bar] = [why.scores[node], why.chances[node], why.bars[node]].map(amount)
  const above = why.bars[node] === null || why.chances[node] >= why.bars[node]
  const place = {
    budget: why.bars[node] === null ? `It is there because the tree is not full: every candidate is in it. Its cumulative draft probability is f = ${score}.`
      : `It is there because its cumulative draft probability, f = ${score}, is among the largest: the last one kept has ${bar}.`,
    costs: above ? `It is there because f = ${score}, the product of calibrated chances along its path, is at least what its place costs: θ × one more node = ${bar}.`
      : `Alone it would not be there: f = ${score} is less than θ × one more node = ${bar}. But the nodes after it are cheaper, and together they pay.`,
    draws: `It is there because f of one more child, before its token was known, was ${chance}: at least ${bar}, the least worth θ × one more node in that pass. With its token known f = ${score}, and that decides what is drafted below it.`,
  }
  const number = why.drafted[node]
  const made = number ? [`Draft pass ${number} drafted it: ${passStory(why.passes[number - 1])}`] : []
  return [place[why.rule], ...made]
}

function passStory({ width, gain, price }) {
  const read = `over ${count(width, "node")}`
  return gain === null ? `${read}.` : `${read}, expected to add ${amount(gain)} tokens for θ × its time = ${amount(price)}.`
}

const amount = (value) => (value === null ? "–" : value >= 0.0995 ? value.toFixed(2) : value.toPrecision(2))

function describeLeftOut(view, step) {
  const { why } = step
  const box = view.el["left-out"]
  if (step.lean && !box.hidden) {
    box.querySelector("summary").textContent = "What was left out of this step's tree comes once the run has ended"
    view.el["left-out-list"].replaceChildren()
    return
  }
  box.hidden = !why
  if (!why) return
  const { left_out: left } = why
  box.querySelector("summary").textContent = left.length ? `Left out of this step's tree: the best ${count(left.length, "candidate")}` : "Nothing was left out of this step's tree"
  const body = [make("p", passesStory(why))]
  if (left.length) body.push(leftOutTable(view, step, why))
  view.el["left-out-list"].replaceChildren(...body)
}

function passesStory(why) {
  const widths = why.passes.map(({ width }) => width).join(" + ")
  const made = widths ? `The draft read ${widths} nodes in ${count(why.passes.length, "pass", "passes")}.` : "The draft made no pass."
  const further = why.further ? ` A further one was not worth it: ${passStory(why.further)}` : ""
  const theta = why.theta === null ? "" : ` θ: the time of a step without a tree is worth ${amount(why.theta)} tokens.`
  return made + further + theta
}

function leftOutTable(view, step, why) {
  const table = make("table")
  const head = make("tr")
  for (const name of ["after", "token", "f", "against", "why not"]) head.append(make("th", name))
  table.append(head)
  for (const { parent, rank, text, score, bar, ground } of why.left_out) {
    const row = make("tr")
    const token = text === null ? (rank === 1 ? "a first child" : "a further child") : visible(text)
    const most = why.rule === "budget" && text === null ? "≤ " : ""
    row.append(make("td", visible(step.tokens[parent]), "code"), make("td", token, text === null ? "" : "code"))
    for (const cell of [most + amount(score), amount(bar), GROUNDS[ground](why.rule)]) row.append(make("td", cell))
    row.onmouseenter = () => hover(view, parent)
    row.onmouseleave = () => hover(view, null)
    row.onclick = () => choose(view, parent)
    table.append(row)
  }
  return table
}
