package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	store "github.com/elemental-conduit/conduit/plugins/txpersist/client"
	persistpb "github.com/elemental-conduit/conduit/proto/conduit/persist"
)

func (a *app) persistCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "persist",
		Short: "Reads and changes what the elements txpersist keep, and sees to their files",
		Long: `Reads and changes the resources that elements txpersist keep: ls, get, put and rm,
through the instance of this machine or --peer, as any other call; stats says what a
store is doing. Every node has resources of its own: where there are several, --node
says which is meant.

check, backup, restore, adopt and compact work on the file of a store, which no process may
have open: <data_dir>/instances/<name>/host/data/<deployment>/txpersist/resources.db.`,
		Example: "  conduit-host persist ls '/scores/**'\n  conduit-host persist check data/instances/worker-1/host/data/txpersist/txpersist/resources.db",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(a.persistList(), a.persistGet(), a.persistPut(), a.persistRemove(), a.persistCheck(), a.persistBackup(), a.persistRestore(), a.persistAdopt(), a.persistCompact(), a.persistStats())
	return cmd
}

// persistFlags say which store is meant.
type persistFlags struct{ deployment, element, node string }

func (a *app) addPersistFlags(cmd *cobra.Command) *persistFlags {
	f := &persistFlags{}
	a.addTargetFlags(cmd)
	cmd.Flags().StringVar(&f.deployment, "deployment", "", "name or id of the store's deployment (default any)")
	cmd.Flags().StringVar(&f.element, "element", "", "name of the store's element (default txpersist)")
	cmd.Flags().StringVar(&f.node, "node", "", "whose resources are meant, if several nodes have some: a node's id, or INSTANCE-ID/DEPLOYMENT")
	return f
}

// parsePath reads an argument that is a path, or a pattern.
func parsePath(text string) (address.Path, error) {
	p, err := address.ParsePath(text)
	if err != nil {
		return p, usagef("%v", err)
	}
	return p, nil
}

// parseNode reads a node's id, or the instance's and the name or id of the deployment.
func parseNode(text string) (address.NodeID, error) {
	if instance, deployment, ok := strings.Cut(text, "/"); ok && deployment != "" {
		i, err := address.ParseInstanceID(instance)
		if err != nil {
			return address.NodeID{}, usagef("%q: %v; `conduit-host ls instances` shows ids", text, err)
		}
		d, err := address.ParseDeploymentID(deployment)
		if err != nil {
			d = address.UniqueDeploymentID(deployment)
		}
		return address.NewNodeID(i, d), nil
	}
	node, err := address.ParseNodeID(text)
	if err != nil {
		return node, usagef("%q is no node: %v; write its id, or INSTANCE-ID/DEPLOYMENT", text, err)
	}
	return node, nil
}

// withStore runs fn with a client of the stores that there are.
func (a *app) withStore(ctx context.Context, f *persistFlags, fn func(ctx context.Context, c *store.Client) error) error {
	o := store.Options{Deployment: f.deployment, Element: f.element}
	if f.node != "" {
		var err error
		if o.Node, err = parseNode(f.node); err != nil {
			return err
		}
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	p, unseen, err := a.newPicture(ctx)
	if err != nil {
		return blame(ctx, err)
	}
	defer p.close()
	err = fn(ctx, store.Open(allOf(p.all), o))
	if e, ok := errors.AsType[*conduit.Error](err); ok && e.Outcome == conduit.NotSent {
		a.tellUnseen(unseen) // it may be there
	}
	if errors.Is(err, store.ErrAmbiguous) {
		err = usagef("%s", strings.Replace(conduit.AsError(err, conduit.NotSent).Message, "give the path the node as its context, or set Options.Node", "say which one with --node", 1))
	}
	return blame(ctx, err)
}

// allOf is a store.Cluster.
type allOf func(addr string) conduit.Group

// All implements store.Cluster.
func (f allOf) All(addr string) conduit.Group { return f(addr) }

type resourceRow struct {
	Path string `json:"path"` // with its node
	ID   string `json:"id"`
}

func (a *app) persistList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls GLOB",
		Short: "Lists resources",
		Long: "Lists the resources that a pattern matches, in the order of their paths: * stands for one component,\n" +
			"a trailing ** for any number, none among them.",
		Example: "  conduit-host persist ls '/scores/*'\n  conduit-host persist ls '/**' --peer ws://127.0.0.1:7400 -o json",
		Args:    takes(1, 1, "GLOB"),
	}
	f := a.addPersistFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := parsePath(args[0])
		if err != nil {
			return err
		}
		return a.withStore(cmd.Context(), f, func(ctx context.Context, c *store.Client) error {
			rows := []resourceRow{}
			for l, err := range c.List(ctx, p) {
				if err != nil {
					return err
				}
				rows = append(rows, resourceRow{l.Path.String(), l.ID.String()})
			}
			return a.print(rows, func(w io.Writer) {
				tableLine(w, "PATH", "RESOURCE")
				for _, r := range rows {
					tableLine(w, address.MustParsePath(r.Path).WithoutContext().String(), r.ID)
				}
			})
		})
	}
	return cmd
}

func (a *app) persistStats() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Says what a store is doing, and who keeps its file from shrinking",
		Long: "Says how large a store's file is, how much of it is free, what was committed, and which transactions are open,\n" +
			"the oldest first: a reader keeps old pages from being used again. It asks for a superuser.",
		Example: "  conduit-host persist stats",
		Args:    takes(0, 0, ""),
	}
	f := a.addPersistFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withStore(cmd.Context(), f, func(ctx context.Context, c *store.Client) error {
			st, err := c.Stats(ctx)
			if err != nil {
				return err
			}
			return a.print(statsOf(st), func(w io.Writer) { printStats(w, st) })
		})
	}
	return cmd
}

type statsRow struct {
	Node         string    `json:"node"`
	FileBytes    int64     `json:"file_bytes"`
	UsedBytes    int64     `json:"used_bytes"`
	FreeBytes    int64     `json:"free_bytes"`
	PendingBytes int64     `json:"pending_bytes"`
	MaxBytes     int64     `json:"max_bytes"`
	Waiting      int32     `json:"waiting"`
	Watches      int32     `json:"watches"`
	Commits      uint64    `json:"commits"`
	Batches      uint64    `json:"batches"`
	Expired      uint64    `json:"expired"`
	Refused      uint64    `json:"refused"`
	Failed       string    `json:"failed,omitempty"`
	Transactions []openRow `json:"transactions"`
}

type openRow struct {
	ID    uint64    `json:"id"`
	Kind  string    `json:"kind"`
	Label string    `json:"label"`
	Owner string    `json:"owner,omitempty"`
	Since time.Time `json:"since"`
}

func statsOf(st *persistpb.StatsReply) statsRow {
	out := statsRow{
		Node: st.GetNode(), FileBytes: st.GetFileBytes(), UsedBytes: st.GetUsedBytes(), FreeBytes: st.GetFreeBytes(), PendingBytes: st.GetPendingBytes(),
		MaxBytes: st.GetMaxBytes(), Waiting: st.GetWaiting(), Watches: st.GetWatches(), Commits: st.GetCommits(), Batches: st.GetBatches(),
		Expired: st.GetExpired(), Refused: st.GetRefused(), Failed: st.GetFailed(), Transactions: []openRow{},
	}
	for _, t := range st.GetTransactions() {
		out.Transactions = append(out.Transactions, openRow{t.GetId(), t.GetKind(), t.GetLabel(), t.GetOwner(), time.UnixMilli(t.GetSinceMs()).UTC()})
	}
	return out
}

func printStats(w io.Writer, st *persistpb.StatsReply) {
	fmt.Fprintf(w, "node\t%s\n", printable(st.GetNode()))
	fmt.Fprintf(w, "file\t%s, of at most %s\n", sizeText(st.GetFileBytes()), sizeText(st.GetMaxBytes()))
	fmt.Fprintf(w, "used\t%s, of which %s are free and %s wait for readers\n", sizeText(st.GetUsedBytes()), sizeText(st.GetFreeBytes()), sizeText(st.GetPendingBytes()))
	fmt.Fprintf(w, "commits\t%d, in %d flushes\n", st.GetCommits(), st.GetBatches())
	fmt.Fprintf(w, "open\t%d transactions, %d more wait; %d were ended for their age, %d refused\n", len(st.GetTransactions()), st.GetWaiting(), st.GetExpired(), st.GetRefused())
	fmt.Fprintf(w, "watches\t%d\n", st.GetWatches())
	if why := st.GetFailed(); why != "" {
		fmt.Fprintf(w, "failed\t%s\n", printable(why))
	}
	for i, t := range st.GetTransactions() {
		if i == 20 {
			fmt.Fprintf(w, "\t... and %d more; -o json has them all\n", len(st.GetTransactions())-i)
			break
		}
		of := ""
		if t.GetOwner() != "" {
			of = " of " + t.GetOwner()
		}
		fmt.Fprintf(w, "\t%s\n", printable(fmt.Sprintf("%s %q%s, since %s", t.GetKind(), t.GetLabel(), of, time.UnixMilli(t.GetSinceMs()).UTC().Format(time.RFC3339))))
	}
}

// sizeText writes a number of bytes in the largest unit of which it has one, to a tenth.
func sizeText(n int64) string {
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " bytes"
	}
	units := []string{"KiB", "MiB", "GiB"}
	size, i := float64(n)/1024, 0
	for size >= 1024 && i+1 < len(units) {
		size, i = size/1024, i+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(size, 'f', 1, 64), ".0") + units[i]
}

func (a *app) persistGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get PATH",
		Short:   "Writes the contents of a resource to standard output, as they are",
		Example: "  conduit-host persist get /scores/ada",
		Args:    takes(1, 1, "PATH"),
	}
	f := a.addPersistFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := parsePath(args[0])
		if err != nil {
			return err
		}
		return a.withStore(cmd.Context(), f, func(ctx context.Context, c *store.Client) error {
			out := &outputWriter{w: a.stdout}
			_, err := c.Read(ctx, p, out)
			if out.err != nil {
				return outputError(out.err, conduit.OutcomeUnknown, "")
			}
			return err
		})
	}
	return cmd
}

// outputWriter remembers what is wrong with standard output.
type outputWriter struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (o *outputWriter) Write(b []byte) (n int, err error) {
	n, o.err = o.w.Write(b)
	return n, o.err
}

func (a *app) persistPut() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put PATH @FILE | -",
		Short: "Gives a resource the contents of a file or of standard input, and makes it if there is none",
		Long: "Gives the resource at a path the contents of a file or of standard input; if there is none, it makes one.\n" +
			"It is one transaction, of any size up to the element's attribute max_contents (1 GiB): when it fails nothing has changed.",
		Example: "  conduit-host persist put /scores/ada @score.txt\n  conduit-host persist put /scores/ada -",
		Args:    takes(2, 2, "PATH @FILE|-"),
	}
	f := a.addPersistFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := parsePath(args[0])
		if err != nil {
			return err
		}
		in, closeInput, err := a.contents(args[1])
		if err != nil {
			return err
		}
		defer closeInput()
		return a.withStore(cmd.Context(), f, func(ctx context.Context, c *store.Client) error {
			id, n, err := c.Write(ctx, p, in)
			if in.err != nil {
				return usagef("the contents cannot be read: %v; nothing was changed", in.err)
			}
			if err != nil {
				return err
			}
			return a.print(map[string]any{"path": p.String(), "id": id.String(), "size": n}, func(w io.Writer) {
				fmt.Fprintf(w, "put %s, %d bytes\n", printable(p.String()), n)
			})
		})
	}
	return cmd
}

// input remembers what is wrong with what is read.
type input struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (i *input) Read(b []byte) (int, error) {
	n, err := i.r.Read(b)
	if err != nil && err != io.EOF {
		i.err = err
	}
	return n, err
}

// contents opens what put is given.
func (a *app) contents(text string) (*input, func(), error) {
	name, isFile := strings.CutPrefix(text, "@")
	switch {
	case text == "-" && a.session == "-":
		return nil, nil, usagef("the contents and --session cannot both come from standard input")
	case text == "-":
		return &input{r: a.stdin}, func() {}, nil
	case !isFile:
		return nil, nil, usagef("%q: write @FILE for the contents of a file, or - for those of standard input", text)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, usagef("the contents cannot be read: %v", err)
	}
	return &input{r: file}, func() { _ = file.Close() }, nil // nothing was written
}

func (a *app) persistRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm PATH",
		Short: "Removes a path, and with a resource's last one the resource",
		Long: "Removes a path. With its last path a resource goes, with its contents and its tasks; one that is\n" +
			"elsewhere too stays there.",
		Example: "  conduit-host persist rm /scores/ada",
		Args:    takes(1, 1, "PATH"),
	}
	f := a.addPersistFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := parsePath(args[0])
		if err != nil {
			return err
		}
		return a.withStore(cmd.Context(), f, func(ctx context.Context, c *store.Client) error {
			removed, err := c.Delete(ctx, p)
			if err != nil {
				return err
			}
			return a.print(map[string]any{"path": p.String(), "removed": removed}, func(w io.Writer) {
				if removed {
					fmt.Fprintf(w, "removed %s\n", printable(p.String()))
				} else {
					fmt.Fprintf(w, "unlinked %s; the resource is at other paths\n", printable(p.String()))
				}
			})
		})
	}
	return cmd
}
