package host

import (
	"fmt"
	"math"
	"strings"
	"testing"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func TestMeasures(t *testing.T) {
	const counter, gauge = conduitv1.Metric_KIND_COUNTER, conduitv1.Metric_KIND_GAUGE
	got := measuresOf([]*conduitv1.Metric{
		{Name: "orders", Kind: counter, Value: 3},
		{Name: "orders", Kind: gauge, Value: 4},
		{Name: "depth_2", Kind: gauge, Value: -1},
		{Name: "falls", Kind: counter, Value: -1},
		{Name: "nan", Kind: counter, Value: math.NaN()},
		{Name: "inf", Kind: counter, Value: math.Inf(1)},
		{Name: "no_kind", Value: 1},
		{Name: "Upper", Kind: gauge},
		{Name: "", Kind: gauge},
		{Name: "1a", Kind: gauge},
		{Name: "a-b", Kind: gauge},
		{Name: strings.Repeat("a", 65), Kind: gauge},
	}, 9)
	if text := fmt.Sprint(got); text != "[{orders true 3 9} {depth_2 false -1 9}]" {
		t.Error(text)
	}
	var many []*conduitv1.Metric
	for k := range 10_000 {
		many = append(many, &conduitv1.Metric{Name: fmt.Sprintf("m%d", k), Kind: gauge})
	}
	if got := measuresOf(many, 1); len(got) != maxMeasures {
		t.Errorf("%d are kept", len(got))
	}
}
