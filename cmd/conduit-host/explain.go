package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
	"github.com/elemental-conduit/conduit/registry"
)

func (a *app) explainCommand() *cobra.Command {
	var units uint32
	cmd := &cobra.Command{
		Use:   "explain ADDRESS METHOD",
		Short: "Says where a call would go, and why",
		Long: `Says where a call would go at this moment, and why: which instance would be picked
and by which rule, and how each that is known stands to the call. Nothing is
called.

EFFECTIVE is what the pick goes by, in units: AVAILABLE less what was SENT there
and is not JUDGED yet. CALLS are those under way from here. What is not known, such as
what an instance does not tell anonymous callers, is a dash.

It explains the pick of the instance of this machine. With --peer it explains the
command's own pick among these, which has sent nothing to any of them.

Exit status: 3 if the call could go nowhere; else as for call.`,
		Example: "  conduit-host explain '*://greeter/greeter/example.Greeter' Greet\n" +
			"  conduit-host explain '*://echo/echo/conduit.example.Echo' Heavy --units 50 -o json --peer ws://127.0.0.1:7400 --peer ws://127.0.0.1:7401",
		Args: takes(2, 2, "ADDRESS METHOD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return blame(ctx, a.explain(ctx, args[0], args[1], units))
		},
	}
	cmd.Flags().Uint32Var(&units, "units", 0, "units of capacity that the call needs, if more than the method's own")
	a.addTargetFlags(cmd)
	return cmd
}

// reasonNobody is the reason of a call that could go nowhere.
const reasonNobody = "no_candidate"

// pickExplanation is where a call would go, and why.
type pickExplanation struct {
	Address string `json:"address"`
	Method  string `json:"method"`
	Units   uint32 `json:"units,omitempty"`
	// Chosen is the instance that would be picked; empty if there is none.
	Chosen     string         `json:"chosen,omitempty"`
	ChosenName string         `json:"chosen_name,omitempty"`
	Local      bool           `json:"local,omitempty"`
	Reason     string         `json:"reason"`
	Candidates []candidateRow `json:"candidates"`
}

// candidateRow is how one instance stands to a call. The numbers are units, but
// for Outstanding.
type candidateRow struct {
	Instance    string `json:"instance,omitempty"`
	Name        string `json:"name,omitempty"`
	URL         string `json:"url,omitempty"`
	Verdict     string `json:"verdict"`
	Health      string `json:"health"`
	Why         string `json:"why,omitempty"`
	Effective   int64  `json:"effective"`
	Available   uint64 `json:"available"`
	Sent        uint64 `json:"sent"`
	Judged      uint64 `json:"judged"`
	Outstanding uint32 `json:"outstanding"`
	// Untold: what room it has is not known, and the numbers of it are 0 for that.
	Untold bool `json:"untold,omitempty"`
	Local  bool `json:"local,omitempty"`
}

func (a *app) explain(ctx context.Context, text, method string, units uint32) error {
	addr, err := address.Parse(text)
	if err != nil {
		return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err)
	}
	if err := checkMethod(method); err != nil {
		return err
	}
	v := pickExplanation{Address: addr.String(), Method: method, Units: units, Candidates: []candidateRow{}}
	var nobody error
	if len(a.peers) > 0 {
		nobody, err = a.explainOwn(ctx, &v, addr)
	} else {
		nobody, err = a.explainInstance(ctx, &v)
	}
	if err != nil {
		return err
	}
	for _, c := range v.Candidates {
		if c.Instance == v.Chosen && v.Chosen != "" {
			v.ChosenName, v.Local = c.Name, v.Local || c.Local
		}
	}
	if err := a.print(v, func(w io.Writer) { explanationTable(w, &v) }); err != nil {
		return err
	}
	return nobody
}

// explainInstance asks the instance of this machine. nobody says that the call could go
// nowhere.
func (a *app) explainInstance(ctx context.Context, v *pickExplanation) (nobody, err error) {
	t, err := a.target(ctx)
	if err != nil {
		return nil, err
	}
	c, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // the question is answered; how the link ends changes nothing
	r, err := ask[*conduitv1.ExplainResponse](ctx, c, "*", adminService, "Explain", &conduitv1.ExplainRequest{Address: v.Address, Method: v.Method, Units: v.Units})
	if err != nil {
		return nil, err
	}
	v.Chosen, v.Reason = r.GetChosen(), r.GetReason()
	for _, c := range r.GetCandidates() {
		v.Candidates = append(v.Candidates, candidateRow{
			Instance: c.GetInstance(), Name: c.GetName(), URL: c.GetUrl(), Verdict: c.GetVerdict(), Health: health(c.GetVerdict()),
			Why:       cmp.Or(c.GetWhy(), whyNot(c.GetVerdict(), c.GetEffective(), c.GetAvailable())),
			Effective: c.GetEffective(), Available: c.GetAvailable(), Sent: c.GetSent(), Judged: c.GetJudged(), Outstanding: c.GetOutstanding(), Local: c.GetLocal(),
			Untold: c.GetUntold(),
		})
	}
	if v.Chosen == "" {
		nobody = nowhere(v)
	}
	return nobody, nil
}

// nowhere is the error of a call that could go nowhere, whoever was asked.
func nowhere(v *pickExplanation) error {
	e := conduit.Errorf(conduit.Unavailable, reasonNobody, conduit.NotSent, "the call could go nowhere: %s", v.Reason)
	e.Address, e.Method = v.Address, v.Method
	return e
}

// explainOwn explains the pick among --peer.
func (a *app) explainOwn(ctx context.Context, v *pickExplanation, addr address.Address) (nobody, err error) {
	c, err := a.dialAll(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // it never fails
	e, err := c.Explain(addr.String(), v.Method, v.Units)
	if err != nil {
		return nil, err
	}
	v.Reason = e.Reason
	if !e.Chosen.IsZero() {
		v.Chosen = e.Chosen.String()
	}
	for _, c := range e.Candidates {
		row := candidateRow{
			Name: c.Name, URL: c.URL, Verdict: string(c.Verdict), Health: health(string(c.Verdict)), Why: c.Why, Effective: c.Effective,
			Available: uint64(max(0, c.Available)), Sent: uint64(max(0, c.Sent)), Judged: uint64(max(0, c.Judged)), Outstanding: uint32(max(0, c.Outstanding)),
			Untold: c.Untold,
		}
		if !c.Instance.IsZero() {
			row.Instance = c.Instance.String()
		}
		if row.Why == "" {
			row.Why = whyNot(row.Verdict, row.Effective, row.Available)
		}
		v.Candidates = append(v.Candidates, row)
	}
	if e.Err != nil {
		nobody = nowhere(v)
	}
	return nobody, nil
}

// health is what a verdict says of the instance itself.
func health(verdict string) string {
	switch v := registry.Verdict(verdict); v {
	case registry.Draining, registry.Unreachable, registry.Conflicting, registry.Cordoned:
		return verdict
	case registry.Starting:
		return "starting"
	default:
		return "alive"
	}
}

// whyNot says what a verdict means, where nobody said more.
func whyNot(verdict string, effective int64, available uint64) string {
	switch registry.Verdict(verdict) {
	case registry.Full:
		return fmt.Sprintf("%d of %d units are effective, and the call costs more", effective, available)
	case registry.Unheard:
		return "it has not said what room it has"
	case registry.Cordoned:
		return "it takes no new units"
	case registry.NoMethod:
		return "the service lists no such method"
	case registry.Starting:
		return "the element is not ready"
	case registry.Draining:
		return "it goes away"
	case registry.Unreachable:
		return "there is no link to it"
	case registry.Conflicting:
		return "another instance with its id came first"
	case registry.Self:
		return "it is this instance"
	case registry.NoService:
		return "the element has no such service"
	case registry.NoElement:
		return "the deployment has no such element"
	case registry.NoDeployment:
		return "it has no such deployment"
	case registry.AnotherInstance:
		return "the address names another"
	default:
		return ""
	}
}

func explanationTable(w io.Writer, v *pickExplanation) {
	switch {
	case v.Chosen == "":
		valueLine(w, "chosen", "none")
	case v.ChosenName == "":
		valueLine(w, "chosen", v.Chosen)
	default:
		valueLine(w, "chosen", v.ChosenName+" ("+v.Chosen+")")
	}
	valueLine(w, "because", v.Reason)
	fmt.Fprintln(w)
	tableLine(w, "NAME", "VERDICT", "HEALTH", "EFFECTIVE", "AVAILABLE", "SENT", "JUDGED", "CALLS", "URL", "WHY")
	for _, c := range v.Candidates {
		name := c.Name
		if name == "" {
			name = c.Instance
		}
		if c.Local {
			name += " (this)"
		}
		effective, available, sent, judged := strconv.FormatInt(c.Effective, 10), number(c.Available), number(c.Sent), number(c.Judged)
		if c.Untold {
			effective, available, sent, judged = "", "", "", ""
		}
		tableLine(w, name, c.Verdict, c.Health, effective, available, sent, judged, number(c.Outstanding), c.URL, c.Why)
	}
}
