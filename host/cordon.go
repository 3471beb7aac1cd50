package host

import (
	"fmt"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/frame"
)

// CordonDeployment says whether a deployment, by its name or a transient one's id, takes
// no new units: calls to it that cost some, and claims of its elements beyond what their
// call has reserved, are refused with cordoned. All else goes on. It holds for as long
// as the deployment is there, at most until the host ends; unchanged says that it held
// already. The error is deployment_not_found.
func (h *Host) CordonDeployment(name string, on bool) (unchanged bool, err error) {
	list, err := h.find(name)
	if err != nil {
		return false, err
	}
	unchanged = true
	for _, e := range list {
		if e.cordoned.Swap(on) != on {
			unchanged = false
			what := map[bool]string{true: "deployment cordoned: it takes no new units", false: "deployment uncordoned"}
			e.log.Info(what[on])
		}
	}
	if !unchanged {
		h.rebuild() // nothing of the table; but who is told of changes looks anew
	}
	return unchanged, nil
}

// judgeFor is judge for a call to an element of a deployment that may be cordoned. What
// is refused for that, its link counts as judged when it refuses it.
func (h *Host) judgeFor(e *element, c Pending, inv *frame.Invoke, want int64) (*budget.Reservation, *conduit.Error) {
	if want > 0 && e.cordoned.Load() {
		return nil, e.errCordoned()
	}
	return h.judge(c, inv, want)
}

// errCordoned is the error of units that a deployment does not take.
func (e *element) errCordoned() *conduit.Error {
	return &conduit.Error{
		Code: conduit.Unavailable, Reason: conduit.ReasonCordoned, Outcome: conduit.Refused, Retryable: true, Op: "host.cordon",
		Message: fmt.Sprintf("deployment %s of this instance is cordoned: it takes no new units until its operator says conduit-host uncordon", e.deployment),
	}
}

// claimReserved claims as an element of a cordoned deployment may: what the call that it
// claims in has reserved. reserved may be nil.
func (e *element) claimReserved(reserved *budget.Reservation) func(n int64) (*budget.Claim, *conduit.Error) {
	return func(n int64) (*budget.Claim, *conduit.Error) {
		if reserved != nil {
			if held, err := reserved.ClaimReserved(n); held != nil || err != nil {
				return held, err
			}
		}
		return nil, e.errCordoned()
	}
}
