package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func (a *app) describeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe ADDRESS | FILE",
		Short: "Describes a service, or what a plugin binary offers",
		Long: `Describes the service at an address as the instance of this machine, or a peer,
hosts it: its methods, what they take and give, and what they ask of a caller.

With the path of a plugin binary it runs FILE describe, with nothing of this
environment and ten seconds at most, and shows what the binary says of itself. An
argument with :// in it is an address.`,
		Example: "  conduit-host describe '*://echo/echo/conduit.example.Echo'\n" +
			"  conduit-host describe '*://echo/echo/conduit.example.Echo' -o json --peer ws://127.0.0.1:7400\n" +
			"  conduit-host describe ./deployments/echo",
		Args: takes(1, 1, "ADDRESS | FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			if strings.Contains(args[0], "://") {
				return blame(ctx, a.describeAddress(ctx, args[0]))
			}
			return blame(ctx, a.describeFile(ctx, args[0]))
		},
	}
	a.addTargetFlags(cmd)
	return cmd
}

// serviceDescription is a service of an element.
type serviceDescription struct {
	Address    string `json:"address,omitempty"`
	Instance   string `json:"instance,omitempty"`
	Name       string `json:"instance_name,omitempty"`
	Deployment string `json:"deployment,omitempty"`
	Element    string `json:"element,omitempty"`
	Version    string `json:"version,omitempty"`
	State      string `json:"state,omitempty"`
	Reason     string `json:"reason,omitempty"` // of the state, and what is to be warned of
	Sandbox    string `json:"sandbox,omitempty"`
	// Disabled, Cordoned and Transient are of the deployment; Cordoned of the instance, too.
	Disabled  bool `json:"disabled,omitempty"`
	Cordoned  bool `json:"cordoned,omitempty"`
	Transient bool `json:"transient,omitempty"`

	Service string      `json:"service"`
	Methods []methodRow `json:"methods"`
	// Attributes are those that its element was given, for operators.
	Attributes []attributeRow `json:"attributes,omitempty"`
}

func serviceDescriptionOf(s *conduitv1.ServiceDescription) serviceDescription {
	d := serviceDescription{Service: s.GetName(), Methods: []methodRow{}}
	for _, m := range s.GetMethods() {
		d.Methods = append(d.Methods, methodRowOf(m))
	}
	return d
}

func (a *app) describeAddress(ctx context.Context, text string) error {
	addr, err := address.Parse(text)
	if err != nil {
		return conduit.Errorf(conduit.InvalidArgument, conduit.ReasonBadAddress, conduit.NotSent, "%v", err)
	}
	t, err := a.target(ctx)
	if err != nil {
		return err
	}
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the question is answered; how the link ends changes nothing
	d, err := describeIn(ctx, c, addr, !t.peer)
	if err != nil {
		return err
	}
	return a.print(d, func(w io.Writer) { descriptionTable(w, &d) })
}

func descriptionTable(w io.Writer, d *serviceDescription) {
	valueLine(w, "address", d.Address)
	valueLine(w, "instance", d.Name+" ("+d.Instance+")")
	valueLine(w, "element", strings.TrimSpace(d.Element+" "+d.Version)+", "+d.State)
	if d.Reason != "" {
		valueLine(w, "why", d.Reason)
	}
	if d.Sandbox != "" {
		valueLine(w, "sandbox", d.Sandbox)
	}
	if d.Disabled {
		valueLine(w, "disabled", "an operator, or its deployment.yaml, has turned it off")
	}
	if d.Cordoned {
		valueLine(w, "cordoned", "it takes no new units")
	}
	if d.Transient {
		valueLine(w, "transient", "it goes with the instance")
	}
	fmt.Fprintln(w)
	methodTable(w, d.Methods)
	if len(d.Attributes) > 0 {
		fmt.Fprintln(w)
		givenTable(w, d.Attributes)
	}
}

// describeIn finds a service in what the instance that is asked hosts, or else, for an
// operator and an address of any instance, in what the others are known to host.
func describeIn(ctx context.Context, c connection, addr address.Address, operator bool) (serviceDescription, error) {
	info, err := hosted(ctx, c, instanceOf(addr))
	if err != nil {
		return serviceDescription{}, err
	}
	d, err := findService(info, addr)
	if _, anyInstance := addr.Instance(); err == nil || !anyInstance || !operator {
		return d, err
	}
	known, knownErr := instances(ctx, c)
	if knownErr != nil {
		return d, err
	}
	for _, other := range hosts([]answer{{peers: known}})[1:] {
		if d, err := findService(other.info, addr); err == nil {
			return d, nil
		}
	}
	return d, err
}

// instanceOf is the instance of an address, as the address of another service of
// it begins.
func instanceOf(a address.Address) string {
	text, _, _ := strings.Cut(a.String(), "://")
	return text
}

// findService finds the service of an address in what an instance says of itself.
func findService(info *conduitv1.InstanceInfo, a address.Address) (serviceDescription, error) {
	none := func(reason, format string, args ...any) (serviceDescription, error) {
		e := conduit.Errorf(conduit.NotFound, reason, conduit.Refused, format, args...)
		e.Address = a.String()
		return serviceDescription{}, e
	}
	if isBuiltinDeployment(a.DeploymentText()) {
		return none(conduit.ReasonServiceNotFound, "the built-in services are not described by instances; proto/conduit/v1/services.proto describes them")
	}
	reason, what := conduit.ReasonDeploymentNotFound, fmt.Sprintf("the instance %s has no such deployment", info.GetName())
	for _, d := range info.GetDeployments() {
		if !isDeployment(a.DeploymentText(), d) {
			continue
		}
		if reason == conduit.ReasonDeploymentNotFound {
			reason, what = conduit.ReasonElementNotFound, "the deployment has no element "+a.Element()
		}
		ordinal := 0
		for _, e := range d.GetElements() {
			if e.GetName() != a.Element() {
				continue
			}
			if n, ok := a.Ordinal(); ok && n != ordinal {
				ordinal++
				continue
			}
			ordinal++
			reason, what = conduit.ReasonServiceNotFound, fmt.Sprintf("the element exports no service %s that you may call; it has %s", a.Service(), serviceNames(e))
			for _, s := range e.GetServices() {
				if s.GetName() == a.Service().String() {
					out := serviceDescriptionOf(s)
					out.Address, out.Instance, out.Name, out.Deployment = serviceAddress(addressed(d), e.GetName(), s.GetName()), info.GetInstance(), info.GetName(), d.GetName()
					out.Element, out.Version, out.State = e.GetName(), e.GetVersion(), e.GetState()
					out.Reason, out.Sandbox = e.GetReason(), e.GetSandbox()
					out.Attributes = attributeRowsGiven(e)
					out.Disabled, out.Transient = d.GetDisabled(), d.GetTransient()
					out.Cordoned = d.GetCordoned() || info.GetState() == conduitv1.InstanceState_INSTANCE_STATE_CORDONED
					return out, nil
				}
			}
		}
	}
	return none(reason, "%s; conduit-host ls services lists all", what)
}

// addressed is how an address names a deployment: one that is transient it cannot.
func addressed(d *conduitv1.DeploymentInfo) string {
	if d.GetTransient() {
		return address.Wildcard
	}
	return d.GetName()
}

func isBuiltinDeployment(text string) bool {
	return text == address.BuiltinDeployment || text == address.UniqueDeploymentID(address.BuiltinDeployment).String()
}

// isDeployment reports whether an address means a deployment: any, by its id or
// by its name.
func isDeployment(text string, d *conduitv1.DeploymentInfo) bool {
	return text == "" || text == "*" || !d.GetTransient() && (text == d.GetId() || text == d.GetName())
}

func serviceNames(e *conduitv1.ElementInfo) string {
	var names []string
	for _, s := range e.GetServices() {
		names = append(names, s.GetName())
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}
