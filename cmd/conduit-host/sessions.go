package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/internal/config"
)

func (a *app) sessionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "Mints, lists and ends sessions",
		Long: "Mints, lists and ends the sessions of an auth store. It works on the store itself, whether or not an\n" +
			"instance runs; those that do see a change within a second.",
		Example: "  conduit-host session mint --user ada -o json\n  conduit-host session ls",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(a.sessionMint(), a.sessionList(), a.sessionRevoke())
	return cmd
}

func (a *app) sessionMint() *cobra.Command {
	var user, ttl string
	cmd := &cobra.Command{
		Use:   "mint --user USER",
		Short: "Makes a session for a user, without the password, and prints its secret",
		Long: `Makes a session for a user, without asking for the password, and prints its
secret, which is kept nowhere else: whoever has it calls as the user. The id of the
session, by which it can be ended, is printed on standard error, or with -o json
beside the secret.

The session lasts auth.session_timeout beyond its last use, or with --ttl just as
long as that says, used or not.`,
		Example: "  conduit-host session mint --user ada\n  conduit-host session mint --user backend --ttl 8h -o json",
		Args:    takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if user == "" {
				return usagef("say whose session: --user NAME")
			}
			var o auth.MintOptions
			if ttl != "" {
				life, why := config.ParseDuration(ttl)
				if why != "" {
					return usagef("--ttl: %q %s", ttl, why)
				}
				o = auth.MintOptions{Life: max(life, 1), Fixed: true}
			}
			return a.changeAccounts(cmd.Context(), false, auditRecord{what: "session mint", whom: cleanName(user)}, func(ctx context.Context, accounts *auth.Accounts, r *auditRecord) error {
				m, err := accounts.Mint(ctx, user, o)
				if err != nil {
					return err
				}
				r.session = m.Session.ID.String()
				if isTerminal(a.stdout) {
					a.warn("the secret stays in the terminal's history; write it to a file that only you can read (umask 077; ... >FILE) and use --session @FILE")
				}
				v := struct {
					Secret  string    `json:"secret"`
					User    string    `json:"user"`
					Expires time.Time `json:"expires"`
					ID      string    `json:"id"`
				}{m.Secret.Reveal(), m.User.Name, m.Session.Expires, m.Session.ID.String()}
				if a.output == formatTable {
					// Not beside the secret: that goes to a file, which --session @FILE reads.
					fmt.Fprintf(a.stderr, "session %s of %s\n", v.ID, v.User)
				}
				return a.print(v, func(w io.Writer) { fmt.Fprintln(w, v.Secret) })
			})
		},
	}
	a.addStoreFlags(cmd)
	a.keys.AddFlags(cmd.Flags(), func(k *config.Key) bool { return k.Name == "auth.session_timeout" })
	cmd.Flags().StringVar(&user, "user", "", "whose session it is")
	cmd.Flags().StringVar(&ttl, "ttl", "", "end it after this time, such as 8h, even if it is used (default: auth.session_timeout after its last use)")
	return cmd
}

// sessionRow is a session in JSON: for scripts, so its names only grow.
type sessionRow struct {
	ID       string        `json:"id"`
	User     string        `json:"user"`
	Level    conduit.Level `json:"level"`
	Created  time.Time     `json:"created"`
	Seen     time.Time     `json:"seen"`
	Expires  time.Time     `json:"expires"`
	Fixed    bool          `json:"fixed,omitempty"`
	Instance string        `json:"instance,omitempty"`
}

func sessionRowOf(s auth.Session, level conduit.Level) sessionRow {
	r := sessionRow{ID: s.ID.String(), User: s.UserName, Level: level, Created: s.Created, Seen: s.Seen, Expires: s.Expires, Fixed: s.Life == 0}
	if !s.Instance.IsZero() {
		r.Instance = s.Instance.String()
	}
	return r
}

// printSessions prints all sessions, or those of one user.
func (a *app) printSessions(ctx context.Context, accounts *auth.Accounts, user string) error {
	sessions, err := accounts.Sessions(ctx, user)
	if err != nil {
		return err
	}
	users, err := accounts.Users(ctx)
	if err != nil {
		return err
	}
	levels := map[auth.UserID]conduit.Level{}
	for _, u := range users {
		levels[u.ID] = u.Level
	}
	rows := make([]sessionRow, 0, len(sessions))
	for _, s := range sessions {
		if level, ok := levels[s.User]; ok { // else the user was removed meanwhile, with the session
			rows = append(rows, sessionRowOf(s, level))
		}
	}
	return a.print(rows, func(w io.Writer) {
		tableLine(w, "ID", "USER", "LEVEL", "SEEN", "EXPIRES", "INSTANCE")
		for _, r := range rows {
			tableLine(w, r.ID, r.User, r.Level.String(), r.Seen.Format(time.RFC3339), r.Expires.Format(time.RFC3339), r.Instance)
		}
	})
}

func (a *app) sessionList() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "Lists the sessions; it shows no secrets, for nobody has them",
		Example: "  conduit-host session ls\n  conduit-host session ls --user ada -o json",
		Args:    takes(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAccounts(cmd.Context(), false, func(ctx context.Context, accounts *auth.Accounts) error {
				return a.printSessions(ctx, accounts, user)
			})
		},
	}
	a.addStoreFlags(cmd)
	cmd.Flags().StringVar(&user, "user", "", "list this user's sessions only")
	return cmd
}

func (a *app) sessionRevoke() *cobra.Command {
	var user string
	cmd := &cobra.Command{
		Use:   "revoke ID | @FILE | --user USER",
		Short: "Ends a session, or all sessions of a user, everywhere within a second",
		Long: `Ends a session, or all sessions of a user, everywhere within a second. A session is
named by its ID, as session mint and session ls show it, or by a file that holds its
secret, as session mint printed it.`,
		Example: "  conduit-host session revoke --user ada\n  conduit-host session revoke @ada.session\n  conduit-host session revoke 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		Args:    takes(0, 1, "ID or @FILE, or --user USER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (user == "") == (len(args) == 0) {
				return usagef("say what to end: the ID of a session, as session ls shows it, @FILE with its secret, or --user NAME for all of a user's")
			}
			var id auth.SessionID
			var secret *auth.Secret
			if user == "" {
				var err error
				if id, secret, err = a.sessionNamed(args[0]); err != nil {
					return err
				}
			}
			return a.changeAccounts(cmd.Context(), false, auditRecord{what: "session revoke", whom: cleanName(user)}, func(ctx context.Context, accounts *auth.Accounts, r *auditRecord) error {
				n := 1
				var err error
				switch {
				case user != "":
					n, err = accounts.RevokeUser(ctx, user)
				case secret != nil:
					if id, err = accounts.RevokeSecret(ctx, *secret); err == nil {
						r.session = id.String()
					}
				default:
					r.session = id.String()
					err = accounts.Revoke(ctx, id)
				}
				if err != nil {
					return err
				}
				return a.print(map[string]int{"revoked": n}, func(w io.Writer) { fmt.Fprintf(w, "revoked: %d\n", n) })
			})
		},
	}
	a.addStoreFlags(cmd)
	cmd.Flags().StringVar(&user, "user", "", "end all sessions of this user")
	return cmd
}

// sessionNamed is the session that an argument names: by its id, or by a file with its
// secret. No message of it says what the secret is.
func (a *app) sessionNamed(arg string) (id auth.SessionID, secret *auth.Secret, err error) {
	if !strings.HasPrefix(arg, "@") {
		id, err = auth.ParseSessionID(arg)
		return id, nil, err
	}
	text, err := a.readSession(arg, "session revoke")
	if err != nil {
		return id, nil, err
	}
	s, err := auth.ParseSecret([]byte(text))
	return id, &s, err
}
