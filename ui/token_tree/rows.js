// Both models' most likely tokens at a decision, and the acceptance there.

function rowTables(view, step, rows, trial) {
  // Both models' most likely tokens at a decision; for a rejected child also the target's residual.
  const models = [["target", rows.target], ...(rows.draft.texts.length ? [["draft", rows.draft]] : [])]
  const found = [make("p", `Most likely after ${quote(step.tokens[rows.node])}:`), sideBySide(...models)]
  const rejectedBefore = trial < 0 ? 0 : trial
  const after = trial < 0 ? null : rows.residuals[rejectedBefore]
  if (after) {
    const before = rejectedBefore ? rows.residuals[rejectedBefore - 1] : rows.target
    found.push(make("p", "The rejection changed the residual R:"), sideBySide(["R before", before], ["R after", after]))
  } else if (trial < 0 && rows.residuals.length) {
    found.push(make("p", "The target's row after the rejections:"), sideBySide(["P", rows.target], ["R", rows.residuals.at(-1)]))
  }
  return found
}

function acceptanceTable(view, { accepted }, children) {
  // Averages over all draws of this number of children, of which this step's is only one.
  const table = make("table", undefined, "shares")
  const best = accepted.best === undefined ? [] : [["best", "best possible", false]]  // unknown with top-p or top-k
  for (const [name, label, own] of [...view.about.verifiers, ...best]) {
    const row = make("tr")
    row.append(make("td", own ? `${label}, as here` : label), make("td", percent(accepted[name])))
    table.append(row)
  }
  const those = children === 1 ? "the only child" : `one of ${children} children`
  return [
    make("p", `How often ${those} is accepted here, averaged over all draws:`),
    table,
    make("p", best.length ? `Best possible: with children ${view.about.drawn}, as here, no verifier can accept more often while preserving the target's distribution. The others draw children differently.` : "Each verifier draws children differently."),
  ]
}

function sideBySide(...columns) {
  const table = make("table", undefined, "likely")
  const head = make("tr")
  for (const [name] of columns) {
    head.append(make("th", name), make("th", ""))
  }
  table.append(head)
  for (let line = 0; line < Math.max(...columns.map(([, likely]) => likely.texts.length)); line++) {
    const row = make("tr")
    for (const [, likely] of columns) {
      const there = line < likely.texts.length
      row.append(make("td", there ? visible(likely.texts[line]) : ""), make("td", there ? percent(likely.probs[line]) : ""))
    }
    table.append(row)
  }
  return table
}
