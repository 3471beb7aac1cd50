package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/plugins/txpersist/store"
)

// reasonStore is the reason of what is wrong with the file of a store; reasonStoreInUse
// of one that a process has open. They never travel.
const (
	reasonStore      = "bad_resource_store"
	reasonStoreInUse = "store_in_use"
)

// fileWait is how long a command waits for a process to let go of a store's file.
const fileWait = 500 * time.Millisecond

// storeOptions are those of the file of a store, of whichever node it is.
func storeOptions(ctx context.Context, file string) (store.Options, error) {
	o := store.Options{File: file, LockTimeout: fileWait, MaxAge: 24 * time.Hour} // a check may take its time
	node, err := store.NodeOf(ctx, o)
	o.Node = node
	return o, err
}

// storeFailure turns what the store says of a file into the error of a command.
func storeFailure(err error) error {
	var problem *store.Error
	var path *fs.PathError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &path) && errors.Is(path, fs.ErrNotExist):
		return usagef("%s does not exist; a store's file is <data_dir>/instances/<name>/host/data/<deployment>/txpersist/resources.db", path.Path)
	case errors.As(err, &path) && errors.Is(path, fs.ErrExist):
		return usagef("%s exists already; nothing is overwritten: name another file, or move this one", path.Path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrPermission):
		return usagef("%v", err)
	case !errors.As(err, &problem):
		return err
	case problem.Kind == store.KindInUse:
		return &conduit.Error{
			Code: conduit.FailedPrecondition, Reason: reasonStoreInUse, Outcome: conduit.NotSent, Err: err,
			Message: fmt.Sprintf("%s is open elsewhere: %s", problem.Subject, problem.Why),
		}
	case problem.Kind == store.KindCorrupt:
		return &conduit.Error{Code: conduit.DataLoss, Reason: reasonStore, Outcome: conduit.NotSent, Err: err, Message: err.Error()}
	default:
		return &conduit.Error{Code: conduit.FailedPrecondition, Reason: reasonStore, Outcome: conduit.NotSent, Err: err, Message: err.Error()}
	}
}

// withFile runs fn with the options of a file that is a store.
func (a *app) withFile(cmd *cobra.Command, file string, fn func(ctx context.Context, o store.Options) error) error {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	a.waits(cmd.Name() + " " + file)
	defer a.waitsNoMore()
	o, err := storeOptions(ctx, file)
	if err == nil {
		err = fn(ctx, o)
	}
	return blame(ctx, storeFailure(err))
}

// withOpen runs fn with the store of a file.
func withOpen(ctx context.Context, o store.Options, fn func(*store.Store) error) error {
	s, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(fn(s), s.Close())
}

func (a *app) persistCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Reads all of a store's file, and says what is damaged",
		Long: "Reads every record of a store's file and compares them with their checksums and with each other. It mends\n" +
			"nothing. A file of an older format is brought to the present one. The element's own method Check does the same while it runs.",
		Example: "  conduit-host persist check resources.db",
		Args:    takes(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withFile(cmd, args[0], func(ctx context.Context, o store.Options) error {
				var st store.Stats
				err := withOpen(ctx, o, func(s *store.Store) error {
					st = s.Stats()
					return s.Check(ctx)
				})
				if err != nil {
					return err
				}
				return a.print(map[string]any{"file": args[0], "node": o.Node.String(), "used": st.UsedBytes, "free": st.FreeBytes}, func(w io.Writer) {
					fmt.Fprintf(w, "%s is whole\nnode\t%s\nused\t%d bytes, of which %d are free\n", printable(args[0]), o.Node, st.UsedBytes, st.FreeBytes)
				})
			})
		},
	}
}

func (a *app) persistBackup() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE TO",
		Short: "Copies a store's file into a new one",
		Long: "Copies a store's file into a new one, which is complete on the disk or does not exist. Of an element that\n" +
			"runs, its method Backup makes one: conduit-host call ADDRESS Backup --raw > TO.",
		Example: "  conduit-host persist backup resources.db backup.db",
		Args:    takes(2, 2, "FILE TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withFile(cmd, args[0], func(ctx context.Context, o store.Options) error {
				var n int64
				err := withOpen(ctx, o, func(s *store.Store) (err error) {
					n, err = s.BackupFile(ctx, args[1])
					return err
				})
				if err != nil {
					return err
				}
				return a.print(map[string]any{"file": args[1], "node": o.Node.String(), "size": n}, func(w io.Writer) {
					fmt.Fprintf(w, "copied %s to %s, %d bytes\n", printable(args[0]), printable(args[1]), n)
				})
			})
		},
	}
}

func (a *app) persistRestore() *cobra.Command {
	return &cobra.Command{
		Use:   "restore BACKUP FILE",
		Short: "Makes a store's file of a backup, and checks it",
		Long: "Makes a store's file of a backup and checks all of it. It overwrites nothing: FILE must not exist. The store\n" +
			"stays its node's; adopt gives it to another.",
		Example: "  conduit-host persist restore backup.db resources.db",
		Args:    takes(2, 2, "BACKUP FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withFile(cmd, args[0], func(ctx context.Context, o store.Options) error {
				in, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer in.Close() //nolint:errcheck // nothing was written
				o.File = args[1]
				if err := store.Restore(ctx, in, o); err != nil {
					return err
				}
				return a.print(map[string]any{"file": args[1], "node": o.Node.String()}, func(w io.Writer) {
					fmt.Fprintf(w, "restored %s\nnode\t%s\n", printable(args[1]), o.Node)
				})
			})
		},
	}
}

func (a *app) persistAdopt() *cobra.Command {
	return &cobra.Command{
		Use:   "adopt FILE NODE",
		Short: "Gives a store's file to another node",
		Long: "Gives a store's file to another node, as when an instance has got another id or a deployment another name:\n" +
			"the element of a node does not open the store of another one. NODE is a node's id, or INSTANCE-ID/DEPLOYMENT.\n" +
			"The ids of all its resources change with it.",
		Example: "  conduit-host persist adopt resources.db 01008b1a9953c4611296a827abf8c47804d7/txpersist",
		Args:    takes(2, 2, "FILE NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := parseNode(args[1])
			if err != nil {
				return err
			}
			return a.withFile(cmd, args[0], func(ctx context.Context, o store.Options) error {
				if err := adopt(ctx, o, to); err != nil {
					return err
				}
				return a.print(map[string]string{"file": args[0], "from": o.Node.String(), "node": to.String()}, func(w io.Writer) {
					fmt.Fprintf(w, "adopted %s\nfrom\t%s\nnode\t%s\n", printable(args[0]), o.Node, to)
				})
			})
		},
	}
}

func (a *app) persistCompact() *cobra.Command {
	return &cobra.Command{
		Use:   "compact FILE",
		Short: "Writes a store's file anew, without the pages that nothing uses",
		Long: "Writes a store's file anew, without the pages that nothing uses any more, and puts the new one into its place:\n" +
			"by itself a file never shrinks. It is checked before, read back after, and replaced in one step: killed at any\n" +
			"moment, the old one or the new one is there, whole. The disk must have room for both. No process may have it open.",
		Example: "  conduit-host persist compact resources.db",
		Args:    takes(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withFile(cmd, args[0], func(ctx context.Context, o store.Options) error {
				done, err := store.Compact(ctx, o)
				if err != nil {
					return err
				}
				return a.print(map[string]any{"file": args[0], "node": o.Node.String(), "before": done.Before, "after": done.After}, func(w io.Writer) {
					fmt.Fprintf(w, "compacted %s\nbefore\t%d bytes\nafter\t%d bytes\n", printable(args[0]), done.Before, done.After)
				})
			})
		},
	}
}

func adopt(ctx context.Context, o store.Options, to address.NodeID) error {
	if o.Node == to {
		return usagef("%s is the store of %s already", o.File, to)
	}
	return store.Adopt(ctx, o.File, o.Node, to)
}
