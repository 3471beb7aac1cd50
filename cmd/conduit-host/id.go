package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/config"
)

func (a *app) idCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "id",
		Short:   "Makes and reads identifiers",
		Example: "  conduit-host id deployment greeter\n  conduit-host id parse 0101acbd18db4cc2385cadef654fccc4a4d8",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(a.idDeployment(), a.idNew(), a.idParse(), a.idReset())
	return cmd
}

// identifier is an id and what can be read out of it.
type identifier struct {
	ID         string `json:"id"`
	Kind       string `json:"kind"`
	Name       string `json:"name,omitempty"`
	Instance   string `json:"instance,omitempty"`
	Deployment string `json:"deployment,omitempty"`
	Node       string `json:"node,omitempty"`
	Resource   string `json:"resource,omitempty"`
	UUID       string `json:"uuid"`
}

func (a *app) idDeployment() *cobra.Command {
	return &cobra.Command{
		Use:   "deployment NAME",
		Short: "Prints the DeploymentID of a name",
		Long: "Prints the DeploymentID of a name: a hash, the same on every instance. Every text has one, also a\n" +
			"text that no deployment on disk may be called; of that it warns.",
		Example: "  conduit-host id deployment greeter",
		Args:    takes(1, 1, "one NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := address.ValidDeploymentName(args[0]); err != nil {
				a.warn("no deployment on disk can have this name: %v", err)
			}
			id := address.UniqueDeploymentID(args[0])
			v := identifier{ID: id.String(), Kind: "deployment", Name: args[0], UUID: formatUUID(id.UUID())}
			return a.print(v, func(w io.Writer) { fmt.Fprintln(w, v.ID) })
		},
	}
}

func (a *app) idNew() *cobra.Command {
	return &cobra.Command{
		Use:     "new",
		Short:   "Prints a new, random InstanceID",
		Example: "  conduit-host id new",
		Args:    takes(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			id := address.RandomInstanceID()
			v := identifier{ID: id.String(), Kind: "instance", UUID: formatUUID(id.UUID())}
			return a.print(v, func(w io.Writer) { fmt.Fprintln(w, v.ID) })
		},
	}
}

func (a *app) idParse() *cobra.Command {
	return &cobra.Command{
		Use:     "parse ID",
		Short:   "Says what an id is of, and what is in it",
		Example: "  conduit-host id parse 0101acbd18db4cc2385cadef654fccc4a4d8",
		Args:    takes(1, 1, "one ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			v, err := parseID(args[0])
			if err != nil {
				return err
			}
			return a.print(v, func(w io.Writer) {
				for _, row := range [][2]string{
					{"id", v.ID},
					{"kind", v.Kind},
					{"instance", v.Instance},
					{"deployment", v.Deployment},
					{"node", v.Node},
					{"resource", v.Resource},
					{"uuid", v.UUID},
				} {
					if row[1] != "" {
						valueLine(w, row[0], row[1])
					}
				}
			})
		},
	}
}

// parseID reads an id of any kind; no text is an id of two.
func parseID(text string) (identifier, error) {
	if id, err := address.ParseInstanceID(text); err == nil {
		return identifier{ID: id.String(), Kind: "instance", UUID: formatUUID(id.UUID())}, nil
	}
	if id, err := address.ParseDeploymentID(text); err == nil {
		return identifier{ID: id.String(), Kind: "deployment", UUID: formatUUID(id.UUID())}, nil
	}
	if id, err := address.ParseNodeID(text); err == nil {
		return identifier{
			ID: id.String(), Kind: "node", Instance: id.Instance().String(), Deployment: id.Deployment().String(),
			UUID: formatUUID(id.Deployment().UUID()),
		}, nil
	}
	if id, err := address.ParseResourceID(text); err == nil {
		return identifier{
			ID: id.String(), Kind: "resource", Instance: id.Node().Instance().String(),
			Deployment: id.Node().Deployment().String(), Node: id.Node().String(), UUID: formatUUID(id.UUID()),
		}, nil
	}
	if id, err := address.ParseTaskID(text); err == nil {
		return identifier{
			ID: id.String(), Kind: "task", Instance: id.Node().Instance().String(), Deployment: id.Node().Deployment().String(),
			Node: id.Node().String(), Resource: id.Resource().String(), UUID: formatUUID(id.UUID()),
		}, nil
	}
	return identifier{}, usagef("%s", whyNoID(text))
}

// whyNoID explains a bad id by the kind that its length suggests.
func whyNoID(text string) string {
	var err error
	switch len(text) {
	case 2 * address.InstanceIDSize: // a DeploymentID is as long
		if strings.HasPrefix(text, "0101") {
			_, err = address.ParseDeploymentID(text)
		} else {
			_, err = address.ParseInstanceID(text)
		}
	case 70:
		_, err = address.ParseNodeID(text)
	case 104:
		_, err = address.ParseResourceID(text)
	case 138:
		_, err = address.ParseTaskID(text)
	default:
		return fmt.Sprintf("%q is not an id: its %d characters are none of 36 (instance, deployment), 70 (node), 104 (resource) or 138 (task)", shorten(text), len(text))
	}
	return err.Error()
}

// shorten keeps a text that stands in a sentence from being most of it.
func shorten(s string) string { return cut(s, 60) }

func formatUUID(u [16]byte) string {
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

func (a *app) idReset() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Gives a stopped instance a new InstanceID",
		Long: "Gives a stopped instance a new InstanceID. What was stored under the old one keeps its ResourceIDs, which\n" +
			"name an instance that is then no more; so first try to restore the file from a backup. The old file is\n" +
			"kept beside the new one. Say which instance is meant by the same configuration as for serve.",
		Example: "  conduit-host id reset --name worker-1 --data-dir /var/lib/conduit",
		Args:    takes(0, 0, ""),
		RunE:    func(*cobra.Command, []string) error { return a.resetID() },
	}
	a.addKeyFlags(cmd, func(k *config.Key) bool {
		return k.Name == "name" || k.Name == "data_dir" || k.Name == "instance.id_file" || k.Name == "mode"
	})
	return cmd
}

func (a *app) resetID() error {
	c, err := a.loadConfig()
	if err := only(err, "name", "data_dir", "run_dir", "instance.id_file"); err != nil {
		return err
	}
	if err := wasHere(c); err != nil {
		return err
	}
	lock, err := lockInstance(c)
	if err != nil {
		return err
	}
	defer lock.release()
	file := c.IDFile()
	old, kept, err := setAside(file)
	if err != nil {
		return configf("the old id in %s cannot be kept: %v", file, err)
	}
	id := address.RandomInstanceID()
	if err := address.StoreInstanceID(file, id); err != nil {
		return configf("%v", err)
	}
	v := struct {
		ID   string `json:"id"`
		Old  string `json:"old,omitempty"`
		File string `json:"file"`
		Kept string `json:"kept,omitempty"`
	}{id.String(), old, file, kept}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintln(w, v.ID)
		if kept != "" {
			fmt.Fprintf(a.stderr, "the old file is kept as %s\n", kept)
		}
	})
}

// wasHere refuses to give an id to an instance that there never was: whoever asks
// for that has named another directory than serve was told.
func wasHere(c *config.Config) error {
	for _, path := range []string{c.PrivateDir(), c.IDFile()} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil // what else is wrong with it is said by who opens it
		}
	}
	others := ""
	if entries, err := os.ReadDir(filepath.Dir(c.PrivateDir())); err == nil {
		var names []string
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
		if names != nil {
			others = "; there is " + strings.Join(names, ", ")
		}
	}
	return conduit.Errorf(conduit.NotFound, conduit.ReasonInstanceNotFound, conduit.NotSent,
		"no instance named %s has run here (%s does not exist)%s; say which one is meant with --name and --data-dir as for serve. A new instance makes its own id",
		c.String("name"), c.PrivateDir(), others)
}

// setAside copies the old file, whatever is in it, to a name that is free, and
// returns the id that it held, if it held one.
func setAside(file string) (old, kept string, err error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	if id, err := address.ParseInstanceID(strings.TrimSpace(line)); err == nil {
		old = id.String()
	}
	for n := 1; ; n++ {
		kept = fmt.Sprintf("%s.old-%d", file, n)
		f, err := os.OpenFile(kept, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return old, "", err
		}
		_, err = f.Write(content)
		return old, kept, errors.Join(err, f.Sync(), f.Close())
	}
}
