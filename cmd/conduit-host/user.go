package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
)

// maxPasswordInput is how much is read for a password, in bytes: more than one may
// have, so that one that is too long is refused and not cut.
const maxPasswordInput = auth.MaxPassword + 256

func (a *app) userCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Adds, lists, changes and removes users",
		Long: "Adds, lists, changes and removes the users of an auth store. It works on the store itself, whether or\n" +
			"not an instance runs; those that do see a change within a second.",
		Example: "  conduit-host user add ada --level user --password-stdin\n  conduit-host user ls",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(a.userAdd(), a.userList(), a.userPassword(), a.userSet(), a.userRemove())
	return cmd
}

// userRow is a user in JSON: for scripts, so its names only grow.
type userRow struct {
	Name     string        `json:"name"`
	Level    conduit.Level `json:"level"`
	Password bool          `json:"password"`
	Disabled bool          `json:"disabled"`
	Created  time.Time     `json:"created"`
}

func userRowOf(u auth.User) userRow {
	return userRow{Name: u.Name, Level: u.Level, Password: !u.Password.IsZero(), Disabled: u.Disabled, Created: u.Created}
}

func (a *app) userAdd() *cobra.Command {
	var level string
	var stdin bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Adds a user",
		Long: `Adds a user of the level user or superuser, and the store if there is none.

With --password-stdin the user can log in with a password: the first line of
standard input, or what is typed there. Without it the user has no password, and
calls with the sessions that are minted with conduit-host session mint.`,
		Example: "  conduit-host user add ada --level user --password-stdin\n" +
			"  conduit-host user add backend --level superuser --auth-store bolt:/var/lib/conduit/auth.db",
		Args: takes(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := levelOf(level)
			if err != nil {
				return err
			}
			// Before the store is touched: what is typed takes its time.
			var password []byte
			if stdin {
				if password, err = a.readPassword(args[0]); err != nil {
					return err
				}
			}
			return a.changeAccounts(cmd.Context(), true, auditRecord{what: "user add", whom: cleanName(args[0])}, func(ctx context.Context, accounts *auth.Accounts, _ *auditRecord) error {
				u, err := accounts.AddUser(ctx, args[0], l, password)
				if err != nil {
					return err
				}
				return a.print(userRowOf(u), func(w io.Writer) {
					fmt.Fprintf(w, "added %s, %s\n", u.Name, u.Level)
					if password == nil {
						fmt.Fprintf(w, "without a password; make a session with: conduit-host session mint --user %s\n", u.Name)
					}
				})
			})
		},
	}
	a.addStoreFlags(cmd)
	cmd.Flags().StringVar(&level, "level", "", "what the user may call: user or superuser")
	cmd.Flags().BoolVar(&stdin, "password-stdin", false, "read a password from standard input")
	return cmd
}

func levelOf(text string) (level conduit.Level, err error) {
	if text == "" {
		return 0, usagef("say what the user may call: --level user or --level superuser")
	}
	if err := level.UnmarshalText([]byte(text)); err != nil || level != conduit.User && level != conduit.Superuser {
		return 0, usagef("--level: %q is none of user, superuser", text)
	}
	return level, nil
}

func (a *app) userList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "Lists the users, those of instances among them",
		Example: "  conduit-host user ls\n  conduit-host user ls -o json",
		Args:    takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAccounts(cmd.Context(), false, func(ctx context.Context, accounts *auth.Accounts) error {
				users, err := accounts.Users(ctx)
				if err != nil {
					return err
				}
				rows := make([]userRow, 0, len(users))
				for _, u := range users {
					rows = append(rows, userRowOf(u))
				}
				return a.print(rows, func(w io.Writer) {
					tableLine(w, "NAME", "LEVEL", "PASSWORD", "DISABLED", "CREATED")
					for _, r := range rows {
						tableLine(w, r.Name, r.Level.String(), yesNo(r.Password), yesNo(r.Disabled), r.Created.Format(time.RFC3339))
					}
				})
			})
		},
	}
	a.addStoreFlags(cmd)
	return cmd
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) userPassword() *cobra.Command {
	var stdin, none bool
	cmd := &cobra.Command{
		Use:     "passwd NAME",
		Short:   "Sets a user's password and ends the user's sessions",
		Long:    "Sets a user's password, or with --none takes it away, and ends all of the user's sessions. The password\nis the first line of standard input, or what is typed there.",
		Example: "  conduit-host user passwd ada --password-stdin\n  conduit-host user passwd ada --none",
		Args:    takes(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if stdin == none {
				return usagef("say where the password is: --password-stdin, or --none for a user who logs in no more")
			}
			var password []byte
			if stdin {
				var err error
				if password, err = a.readPassword(args[0]); err != nil {
					return err
				}
			}
			return a.changeAccounts(cmd.Context(), false, auditRecord{what: "user passwd", whom: cleanName(args[0])}, func(ctx context.Context, accounts *auth.Accounts, _ *auditRecord) error {
				if err := accounts.SetPassword(ctx, args[0], password); err != nil {
					return err
				}
				v := struct {
					Name     string `json:"name"`
					Password bool   `json:"password"`
				}{args[0], password != nil}
				return a.print(v, func(w io.Writer) {
					what := "set the password of"
					if password == nil {
						what = "took away the password of"
					}
					fmt.Fprintf(w, "%s %s; the user's sessions have ended\n", what, printable(v.Name))
				})
			})
		},
	}
	a.addStoreFlags(cmd)
	cmd.Flags().BoolVar(&stdin, "password-stdin", false, "read the password from standard input")
	cmd.Flags().BoolVar(&none, "none", false, "take the password away")
	return cmd
}

func (a *app) userSet() *cobra.Command {
	var level string
	var disabled bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Changes a user's level, keeps a user out, or lets one in again",
		Long: "Changes a user's level, for the sessions that there are as well, keeps a user out and ends the user's\n" +
			"sessions (--disabled), or lets the user in again (--disabled=false).",
		Example: "  conduit-host user set ada --level superuser\n  conduit-host user set ada --disabled",
		Args:    takes(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var l conduit.Level
			setLevel, setDisabled := cmd.Flags().Changed("level"), cmd.Flags().Changed("disabled")
			if !setLevel && !setDisabled {
				return usagef("say what to change: --level, --disabled or --disabled=false")
			}
			if setLevel {
				var err error
				if l, err = levelOf(level); err != nil {
					return err
				}
			}
			what := "user set"
			if setLevel {
				what += " --level " + l.String()
			}
			if setDisabled {
				what += " --disabled=" + strconv.FormatBool(disabled)
			}
			return a.changeAccounts(cmd.Context(), false, auditRecord{what: what, whom: cleanName(args[0])}, func(ctx context.Context, accounts *auth.Accounts, _ *auditRecord) error {
				if setLevel {
					if err := accounts.SetLevel(ctx, args[0], l); err != nil {
						return err
					}
				}
				if setDisabled {
					if err := accounts.SetDisabled(ctx, args[0], disabled); err != nil {
						return err
					}
				}
				return a.print(map[string]string{"name": args[0]}, func(w io.Writer) { fmt.Fprintf(w, "changed %s\n", printable(args[0])) })
			})
		},
	}
	a.addStoreFlags(cmd)
	cmd.Flags().StringVar(&level, "level", "", "what the user may call: user or superuser")
	cmd.Flags().BoolVar(&disabled, "disabled", false, "keep the user out")
	return cmd
}

func (a *app) userRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm NAME",
		Short:   "Removes a user and ends the user's sessions",
		Example: "  conduit-host user rm ada",
		Args:    takes(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeAccounts(cmd.Context(), false, auditRecord{what: "user rm", whom: cleanName(args[0])}, func(ctx context.Context, accounts *auth.Accounts, _ *auditRecord) error {
				if err := accounts.RemoveUser(ctx, args[0]); err != nil {
					return err
				}
				return a.print(map[string]string{"removed": args[0]}, func(w io.Writer) { fmt.Fprintf(w, "removed %s\n", printable(args[0])) })
			})
		},
	}
	a.addStoreFlags(cmd)
	return cmd
}

// readPassword reads the first line of standard input. A person is asked for it, and
// does not see it. No message of it says what the password is.
func (a *app) readPassword(name string) ([]byte, error) {
	if f, ok := a.stdin.(*os.File); ok && isTerminal(f) {
		fmt.Fprintf(a.stderr, "Password of %s: ", printable(name))
		defer fmt.Fprintln(a.stderr)
		restore, err := silence(f)
		if err != nil {
			return nil, usagef("the terminal cannot be kept from showing the password: %v; give it by a pipe", err)
		}
		defer restore()
	}
	line, err := readLine(a.stdin, maxPasswordInput)
	if err != nil {
		return nil, usagef("the password cannot be read from standard input: %v", err)
	}
	if len(line) == 0 {
		return nil, usagef("the password on standard input is empty")
	}
	return line, nil
}

// readLine reads up to a line's end, and nothing beyond what it takes to see that:
// the end of standard input may be far.
func readLine(in io.Reader, most int) ([]byte, error) {
	line := make([]byte, 0, most)
	for one := make([]byte, 1); len(line) < most; {
		n, err := in.Read(one)
		if n == 1 && one[0] == '\n' || err == io.EOF {
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
		if err != nil {
			return nil, err
		}
		line = append(line, one[:n]...)
	}
	return line, nil
}

// silence has a terminal show nothing of what is typed until restore is called.
func silence(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	was, err := unix.IoctlGetTermios(fd, ioctlGetTermios)
	if err != nil {
		return nil, err
	}
	quiet := *was
	quiet.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, ioctlSetTermios, &quiet); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, ioctlSetTermios, was) }, nil
}
