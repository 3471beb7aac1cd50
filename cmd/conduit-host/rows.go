package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/host"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// What ls and describe print of the messages of the built-in services. The names
// in JSON are for scripts: they only grow.

type instanceRow struct {
	Name      string   `json:"name"`
	Instance  string   `json:"instance"`
	State     string   `json:"state"`
	Reason    string   `json:"reason,omitempty"`
	Mode      string   `json:"mode,omitempty"`
	Version   string   `json:"version,omitempty"`
	UptimeMS  uint64   `json:"uptime_ms,omitempty"`
	Available uint64   `json:"available"`
	Total     uint64   `json:"total"`
	InFlight  uint64   `json:"in_flight"`
	URLs      []string `json:"urls,omitempty"`
	Self      bool     `json:"self,omitempty"`
	Cordoned  bool     `json:"cordoned,omitempty"`
	// Of a peer, as the one that was asked counts: in units, but for Outstanding,
	// its calls under way there. HeardMS is how long ago the peer said anything.
	Effective   int64  `json:"effective,omitempty"`
	Sent        uint64 `json:"sent,omitempty"`
	Judged      uint64 `json:"judged,omitempty"`
	Outstanding uint32 `json:"outstanding,omitempty"`
	HeardMS     uint64 `json:"heard_ms,omitempty"`
}

func instanceRowOf(p *conduitv1.PeerInfo, self bool) instanceRow {
	i := p.GetInfo()
	r := instanceRow{
		Name: i.GetName(), Instance: i.GetInstance(), State: p.GetState(), Reason: p.GetReason(), Mode: i.GetMode(), Version: i.GetVersion(),
		UptimeMS: i.GetUptimeMillis(), Available: i.GetAvailable(), Total: i.GetTotal(), InFlight: i.GetInFlight(), URLs: p.GetUrls(), Self: self,
		Cordoned:  i.GetState() == conduitv1.InstanceState_INSTANCE_STATE_CORDONED,
		Effective: p.GetEffective(), Sent: p.GetSent(), Judged: p.GetJudged(), Outstanding: p.GetOutstanding(), HeardMS: p.GetHeardMillis(),
	}
	if r.State == "" {
		r.State = enumText(i.GetState().String(), "INSTANCE_STATE_")
	}
	return r
}

func instanceTable(w io.Writer, rows []instanceRow) {
	tableLine(w, "NAME", "INSTANCE", "STATE", "MODE", "VERSION", "UPTIME", "UNITS", "CALLS", "HEARD", "URL")
	for _, r := range rows {
		units := ""
		if r.Total > 0 {
			units = fmt.Sprintf("%d/%d", r.Available, r.Total)
		}
		state := r.State
		if r.Cordoned && state != "cordoned" {
			state += ", cordoned"
		}
		heard := "" // oneself one hears always, and some one never has
		if !r.Self && r.HeardMS > 0 {
			heard = span(r.HeardMS) + " ago"
		}
		uptime := ""
		if r.UptimeMS > 0 {
			uptime = span(r.UptimeMS)
		}
		tableLine(w, r.Name, r.Instance, withReason(state, r.Reason), r.Mode, r.Version, uptime, units, number(r.InFlight), heard, strings.Join(r.URLs, ","))
	}
}

type deploymentRow struct {
	Instance string `json:"instance"`
	ID       string `json:"id"`
	Name     string `json:"name"`
	Status   string `json:"status"`
	Why      string `json:"why,omitempty"` // of a status that is not clean
	Elements int    `json:"elements"`
	Enabled  bool   `json:"enabled"`
	Cordoned bool   `json:"cordoned,omitempty"`
	// Transient: it goes with the instance, and no address can name it.
	Transient bool `json:"transient,omitempty"`
	// Previous is the SHA-256 of what rollback would put back.
	Previous string `json:"previous,omitempty"`
}

func deploymentRowOf(instance string, d *conduitv1.DeploymentInfo) deploymentRow {
	return deploymentRow{
		Why: whyOf(d), Instance: instance, ID: d.GetId(), Name: d.GetName(), Status: d.GetStatus(), Elements: len(d.GetElements()),
		Enabled: !d.GetDisabled(), Cordoned: d.GetCordoned(), Transient: d.GetTransient(), Previous: d.GetPrevious(),
	}
}

// whyOf returns what the first element of a deployment says of itself that has something to
// say, and how many more have; "" if none has.
func whyOf(d *conduitv1.DeploymentInfo) (why string) {
	more := 0
	for _, e := range d.GetElements() {
		switch {
		case e.GetReason() == "":
		case why == "":
			why = e.GetReason()
			if len(d.GetElements()) > 1 {
				why = e.GetName() + ": " + why
			}
		default:
			more++
		}
	}
	if more > 0 {
		why = fmt.Sprintf("%s (and %d more)", shorten(why), more)
	}
	return why
}

// shownSum is how many digits of a SHA-256 a table shows.
const shownSum = 12

func deploymentTable(w io.Writer, rows []deploymentRow) {
	tableLine(w, "INSTANCE", "DEPLOYMENT", "ID", "STATUS", "ELEMENTS", "ENABLED", "CORDONED", "TRANSIENT", "PREVIOUS")
	for _, r := range rows {
		tableLine(w, r.Instance, r.Name, r.ID, withReason(r.Status, r.Why), strconv.Itoa(r.Elements), yesNo(r.Enabled), yesNo(r.Cordoned), yesNo(r.Transient), r.Previous[:min(len(r.Previous), shownSum)])
	}
}

type elementRow struct {
	Instance   string   `json:"instance"`
	Deployment string   `json:"deployment"`
	Element    string   `json:"element"`
	Version    string   `json:"version"`
	State      string   `json:"state"`
	SinceMS    uint64   `json:"since_ms"`
	Reason     string   `json:"reason,omitempty"`
	Generation uint64   `json:"generation"`
	Restarts   uint64   `json:"restarts"`
	Pid        int64    `json:"pid,omitempty"`
	InFlight   uint64   `json:"in_flight"`
	Claims     uint64   `json:"claims,omitempty"` // of units, by count
	LastExit   string   `json:"last_exit,omitempty"`
	Stderr     []string `json:"stderr,omitempty"`
	// Attributes are those that its process was given.
	Attributes []attributeRow `json:"attributes,omitempty"`
	File       string         `json:"file,omitempty"`
	Sandbox    string         `json:"sandbox,omitempty"` // what is in force
}

// attributeRow is an attribute; of a sensitive one there is no value.
type attributeRow struct {
	Name        string `json:"name"`
	Value       string `json:"value,omitempty"`
	Sensitive   bool   `json:"sensitive,omitempty"`
	Source      string `json:"source,omitempty"`
	Default     string `json:"default,omitempty"`
	Required    bool   `json:"required,omitempty"`
	Description string `json:"description,omitempty"`
}

// attributeRowsOf are the attributes that an element declares.
func attributeRowsOf(d *conduitv1.Description) (rows []attributeRow) {
	for _, a := range d.GetAttributes() {
		r := attributeRow{Name: a.GetName(), Default: a.GetDefault(), Sensitive: a.GetSensitive(), Required: a.GetRequired(), Description: a.GetDescription()}
		if r.Sensitive && r.Default != "" {
			r.Default = host.Redacted // a host refuses such an element
		}
		rows = append(rows, r)
	}
	return rows
}

// attributeRowsGiven are the attributes that an element was given.
func attributeRowsGiven(e *conduitv1.ElementInfo) (rows []attributeRow) {
	for _, a := range e.GetAttributes() {
		rows = append(rows, attributeRow{Name: a.GetName(), Value: a.GetValue(), Sensitive: a.GetSensitive(), Source: a.GetSource()})
	}
	return rows
}

func givenTable(w io.Writer, rows []attributeRow) {
	tableLine(w, "ATTRIBUTE", "VALUE", "FROM")
	for _, r := range rows {
		value := r.Value
		if r.Sensitive {
			value = host.Redacted
		}
		tableLine(w, r.Name, value, r.Source)
	}
}

func attributeTable(w io.Writer, rows []attributeRow) {
	tableLine(w, "ATTRIBUTE", "DEFAULT", "NOTES", "WHAT IT IS FOR")
	for _, r := range rows {
		var notes []string
		if r.Required {
			notes = append(notes, "required")
		}
		if r.Sensitive {
			notes = append(notes, "sensitive")
		}
		tableLine(w, r.Name, r.Default, strings.Join(notes, ", "), r.Description)
	}
}

func elementRowOf(instance, deployment string, e *conduitv1.ElementInfo) elementRow {
	return elementRow{
		Attributes: attributeRowsGiven(e),
		Instance:   instance, Deployment: deployment, Element: e.GetName(), Version: e.GetVersion(), State: e.GetState(), SinceMS: e.GetSinceMillis(),
		Reason: e.GetReason(), Generation: e.GetGeneration(), Restarts: e.GetRestarts(), Pid: e.GetPid(), InFlight: e.GetInFlight(),
		Claims: e.GetClaims(), LastExit: e.GetLastExit(), Stderr: e.GetStderr(), File: e.GetFile(),
		Sandbox: e.GetSandbox(),
	}
}

func elementTable(w io.Writer, rows []elementRow) {
	tableLine(w, "INSTANCE", "DEPLOYMENT", "ELEMENT", "VERSION", "STATE", "SINCE", "CALLS", "CLAIMS", "RESTARTS", "PID", "WHY")
	for _, r := range rows {
		pid := ""
		if r.Pid != 0 {
			pid = strconv.FormatInt(r.Pid, 10)
		}
		tableLine(w, r.Instance, r.Deployment, r.Element, r.Version, r.State, span(r.SinceMS), number(r.InFlight), number(r.Claims), number(r.Restarts), pid, r.Reason)
	}
}

type serviceRow struct {
	Instance   string `json:"instance"`
	Deployment string `json:"deployment"`
	Element    string `json:"element"`
	Service    string `json:"service"`
	Methods    int    `json:"methods"`
	Address    string `json:"address"`
}

func serviceTable(w io.Writer, rows []serviceRow) {
	tableLine(w, "INSTANCE", "ADDRESS", "METHODS")
	for _, r := range rows {
		tableLine(w, r.Instance, r.Address, strconv.Itoa(r.Methods))
	}
}

// methodRow is a method; ls says also where it is.
type methodRow struct {
	Instance     string   `json:"instance,omitempty"`
	Address      string   `json:"address,omitempty"`
	Method       string   `json:"method"`
	Shape        string   `json:"shape"`
	Level        string   `json:"level"`
	Remote       bool     `json:"remote"`
	Units        uint32   `json:"units,omitempty"`
	Idempotent   bool     `json:"idempotent,omitempty"`
	Deprecated   string   `json:"deprecated,omitempty"`
	Timeout      string   `json:"timeout,omitempty"`
	Request      string   `json:"request,omitempty"`
	Reply        string   `json:"reply,omitempty"`
	ContentTypes []string `json:"content_types,omitempty"`
}

func methodRowOf(m *conduitv1.MethodDescription) methodRow {
	r := methodRow{
		Method: m.GetName(), Shape: enumText(m.GetShape().String(), "SHAPE_"), Level: conduit.Level(m.GetMinLevel()).String(), Remote: m.GetRemote(),
		Units: m.GetUnits(), Idempotent: m.GetIdempotent(), Deprecated: m.GetDeprecated(), Request: m.GetRequestType(), Reply: m.GetReplyType(),
		ContentTypes: m.GetContentTypes(),
	}
	if t := m.GetTimeoutMicros(); t > 0 {
		r.Timeout = (time.Duration(min(t, 1<<50)) * time.Microsecond).String()
	}
	return r
}

// notes is what is special about a method, for a table.
func (r methodRow) notes() string {
	var notes []string
	if !r.Remote {
		notes = append(notes, "not remote")
	}
	if r.Idempotent {
		notes = append(notes, "idempotent")
	}
	if r.Units > 0 {
		notes = append(notes, fmt.Sprintf("%d units", r.Units))
	}
	if r.Timeout != "" {
		notes = append(notes, "at most "+r.Timeout)
	}
	if r.Deprecated != "" {
		notes = append(notes, "deprecated: "+r.Deprecated)
	}
	return strings.Join(notes, ", ")
}

func methodTable(w io.Writer, rows []methodRow) {
	tableLine(w, "METHOD", "SHAPE", "LEVEL", "TAKES", "GIVES", "NOTES")
	for _, r := range rows {
		tableLine(w, r.Method, r.Shape, r.Level, r.Request, r.Reply, r.notes())
	}
}

func methodsTable(w io.Writer, rows []methodRow) {
	tableLine(w, "INSTANCE", "ADDRESS", "METHOD", "SHAPE", "LEVEL", "NOTES")
	for _, r := range rows {
		tableLine(w, r.Instance, r.Address, r.Method, r.Shape, r.Level, r.notes())
	}
}

type linkRow struct {
	Kind       string `json:"kind"`
	Peer       string `json:"peer"`
	Remote     string `json:"remote,omitempty"`
	CallsOut   uint32 `json:"calls_out"`
	CallsIn    uint32 `json:"calls_in"`
	BytesIn    uint64 `json:"bytes_in"`
	BytesOut   uint64 `json:"bytes_out"`
	PacketsIn  uint64 `json:"packets_in"`
	PacketsOut uint64 `json:"packets_out"`
	RTTMicros  uint64 `json:"rtt_us,omitempty"`
	IdleMS     uint64 `json:"idle_ms"`
	Queued     uint32 `json:"queued"`
	Overdue    uint32 `json:"overdue,omitempty"`
}

func linkRowOf(l *conduitv1.LinkInfo) linkRow {
	return linkRow{
		Kind: l.GetKind(), Peer: l.GetPeer(), Remote: l.GetRemote(), CallsOut: l.GetCallsOut(), CallsIn: l.GetCallsIn(), BytesIn: l.GetBytesIn(),
		BytesOut: l.GetBytesOut(), PacketsIn: l.GetPacketsIn(), PacketsOut: l.GetPacketsOut(), RTTMicros: l.GetRttMicros(), IdleMS: l.GetIdleMillis(),
		Queued: l.GetQueued(), Overdue: l.GetOverdue(),
	}
}

func linkTable(w io.Writer, rows []linkRow) {
	tableLine(w, "KIND", "PEER", "REMOTE", "OUT", "IN", "BYTES OUT", "BYTES IN", "RTT", "IDLE", "QUEUED", "OVERDUE")
	for _, r := range rows {
		rtt := ""
		if r.RTTMicros > 0 {
			rtt = (time.Duration(min(r.RTTMicros, 1<<50)) * time.Microsecond).String()
		}
		tableLine(w, r.Kind, r.Peer, r.Remote, number(r.CallsOut), number(r.CallsIn), number(r.BytesOut), number(r.BytesIn), rtt, span(r.IdleMS), number(r.Queued), number(r.Overdue))
	}
}

// serviceAddress is how a service is called at any instance.
func serviceAddress(deployment, element, service string) string {
	text := "*://" + deployment + "/" + element + "/" + service
	if a, err := address.Parse(text); err == nil {
		return a.String()
	}
	return text
}

// What tables show of a text, in characters: what elements and peers say of
// themselves is theirs to choose, and JSON has the whole of it.
const (
	maxCell  = 200  // in a column, which is as wide as its widest cell
	maxValue = 1000 // on a line of its own
)

// tableLine writes the cells of a line; an empty one is a dash, so that columns
// can be counted.
func tableLine(w io.Writer, cells ...string) {
	for i, c := range cells {
		if c == "" {
			c = "-"
		}
		cells[i] = shown(c, maxCell)
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// valueLine writes a line that says one thing.
func valueLine(w io.Writer, name, value string) {
	fmt.Fprintf(w, "%s\t%s\n", name, shown(value, maxValue))
}

// shown is a text as a table shows it. It is cut also before it is made printable,
// which makes it longer, and takes its time for a text without end.
func shown(s string, most int) string { return cut(printable(cut(s, most)), most) }

// cut shortens a text to a number of characters, and shows that it did.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "..."
}

func withReason(state, reason string) string {
	if reason == "" {
		return state
	}
	return state + " (" + cut(reason, max(1, maxCell-len(state)-len(" (...)"))) + ")"
}

func number[N uint32 | uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

// span writes milliseconds as a person reads them: 350ms, 12s, 3m7s.
func span(ms uint64) string {
	d := time.Duration(min(ms, 1<<40)) * time.Millisecond
	if d >= time.Second {
		d = d.Truncate(time.Second)
	}
	return d.String()
}

func enumText(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
