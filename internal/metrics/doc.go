// Package metrics counts what an instance does and shows it to Prometheus.
// docs/metrics.md lists every name.
//
// It owns the names, the labels and what bounds them, and two ways in:
//
//   - what is counted as it happens: calls, through [Calls], and dials, lookups
//     and checks of credentials, through methods of [Metrics];
//   - what others know anyway: links, peers, the budget and elements, which funcs
//     of [Options] return when somebody scrapes. Between scrapes they cost nothing.
//
// It is given plain values and imports of this module the vocabulary alone, so
// that whoever counts does not depend on Prometheus, and this package on nobody.
// Nothing here is global: each [Metrics] has a registry of its own, and two
// instances in one test do not meet.
//
// # Labels
//
// No label holds an address, a user, a secret, or anything that a caller chose.
// Callers name deployments, services and methods; [Calls.Find] counts under a
// name only if somebody who may has declared it, and as "unknown" otherwise.
package metrics
