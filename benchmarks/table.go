package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// markdown is the outcome of a run: where and how it was, and the tables.
func (r *results) markdown(m machine, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s on %s.\n", m.date, m.hardware)
	fmt.Fprintf(&b, "%s. GOMAXPROCS=%d in every process. %s\n\n", m.software, o.procs, m.busy())
	fmt.Fprintf(&b, "`%s`: %d windows of %v for each figure, after %v of warm-up (longer where calls take long); the systems take turns.\n", o.command(), o.rounds, o.window, o.warm)
	b.WriteString("A figure is the median of its windows; a ratio is the median of the ratios of windows side by side, with the least and the greatest in brackets.\n\n")
	for _, e := range r.entries {
		fmt.Fprintf(&b, "- **%s**: %s\n", e.title, e.about)
	}
	b.WriteString("\n#### Calls per second\n\n")
	r.table(&b, "÷", func(s sample) float64 { return s.rate() }, func(s []sample) string {
		return thousands(median(s, sample.rate))
	})
	b.WriteString("\n#### Latency, p50 / p99 in µs\n\n")
	r.table(&b, "", nil, func(s []sample) string {
		return micros(median(s, func(s sample) float64 { return float64(s.P50) })) + " / " +
			micros(median(s, func(s sample) float64 { return float64(s.P99) }))
	})
	b.WriteString("\n#### CPU per call in µs, all processes together\n\n")
	r.table(&b, "÷", func(s sample) float64 { return float64(s.cpu()) }, func(s []sample) string {
		v := median(s, func(s sample) float64 { return float64(s.cpu()) })
		if v == 0 {
			return "–"
		}
		return micros(v)
	})
	return b.String()
}

// table writes a row for each cell and a column for each system, then, with a
// ratio, a column for each system that the first is divided by.
func (r *results) table(b *strings.Builder, over string, ratio func(sample) float64, show func([]sample) string) {
	head := []string{"payload", "in flight"}
	for _, e := range r.entries {
		head = append(head, e.title)
	}
	if ratio != nil {
		for _, e := range r.entries[1:] {
			head = append(head, r.entries[0].title+" "+over+" "+e.title)
		}
	}
	row(b, head)
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "--:"
	}
	row(b, rule)
	for _, c := range r.cells {
		line := []string{sizeText(c.size), strconv.Itoa(c.inFlight)}
		for i := range r.entries {
			if s := r.column(c, i); len(s) > 0 {
				line = append(line, show(s))
			} else {
				line = append(line, "failed")
			}
		}
		if ratio != nil {
			for i := range r.entries[1:] {
				line = append(line, spread(r.ratios(c, i+1, ratio)))
			}
		}
		row(b, line)
	}
}

func row(w io.Writer, fields []string) {
	fmt.Fprintln(w, "| "+strings.Join(fields, " | ")+" |")
}

// column is what a system gave in a cell, without what failed.
func (r *results) column(c cell, system int) []sample {
	var all []sample
	for _, turn := range r.samples[c] {
		if turn[system].Error == "" {
			all = append(all, turn[system])
		}
	}
	return all
}

// ratios are those of the first system to another, round by round.
func (r *results) ratios(c cell, system int, of func(sample) float64) []float64 {
	var all []float64
	for _, turn := range r.samples[c] {
		first, other := turn[0], turn[system]
		if first.Error != "" || other.Error != "" || of(other) == 0 || of(first) == 0 {
			continue
		}
		all = append(all, of(first)/of(other))
	}
	return all
}

// median is 0 without samples.
func median(s []sample, of func(sample) float64) float64 {
	values := make([]float64, len(s))
	for i := range s {
		values[i] = of(s[i])
	}
	return middle(values)
}

func middle(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	half := len(values) / 2
	if len(values)%2 == 1 {
		return values[half]
	}
	return (values[half-1] + values[half]) / 2
}

// spread is a median with the least and the greatest.
func spread(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	return fmt.Sprintf("**%s** (%s–%s)", short(middle(values)), short(slices.Min(values)), short(slices.Max(values)))
}

// short has about three digits.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

func micros(nanoseconds float64) string { return short(nanoseconds / float64(time.Microsecond)) }

// thousands is a whole number such as 12,345.
func thousands(v float64) string {
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// sizeText is a size such as 64 KiB.
func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	default:
		return fmt.Sprintf("%d B", n)
	}
}

// command is how to run this again.
func (o options) command() string {
	c := "make bench"
	if o.write {
		c += " BENCHMARKS_ARGS=-write"
	}
	return cmp.Or(o.args, c)
}
