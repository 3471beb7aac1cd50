package etcdstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
)

const format = 1

// What etcd holds, as JSON; times in ms of Unix time.
type (
	storeRecord struct {
		Is     string `json:"is"` // storeIs
		Format int    `json:"format"`
		ID     string `json:"id"`
	}
	userRecord struct {
		Name     string        `json:"name"`
		Epoch    string        `json:"epoch"`
		Level    conduit.Level `json:"level"`
		Disabled bool          `json:"disabled,omitempty"`
		Password []byte        `json:"password,omitempty"` //nolint:gosec // a hash; this is where it is kept
		Stamp    []byte        `json:"stamp"`
		Created  int64         `json:"created"`
	}
	sessionRecord struct {
		User     string `json:"user"`
		Epoch    string `json:"epoch"`
		Name     string `json:"name"`
		Instance string `json:"instance,omitempty"`
		Created  int64  `json:"created"`
		Seen     int64  `json:"seen"`
		Expires  int64  `json:"expires"`
		Life     int64  `json:"life,omitempty"` // ms
	}
)

const storeIs = "conduit-auth"

// user is a record that was read.
type user struct {
	auth.User

	epoch    string
	revision int64 // of its key
}

// session is a record that was read.
type session struct {
	auth.Session

	epoch    string
	revision int64
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of these types there is nothing that JSON could not hold
	}
	return string(b)
}

func encodeUser(u auth.User, epoch string) string {
	return encode(userRecord{
		Name: u.Name, Epoch: epoch, Level: u.Level, Disabled: u.Disabled,
		Password: u.Password.Reveal(), Stamp: u.Stamp.Reveal(), Created: u.Created.UnixMilli(),
	})
}

func encodeSession(s auth.Session, epoch string) string {
	r := sessionRecord{
		User: s.User.String(), Epoch: epoch, Name: s.UserName,
		Created: s.Created.UnixMilli(), Seen: s.Seen.UnixMilli(), Expires: s.Expires.UnixMilli(), Life: s.Life.Milliseconds(),
	}
	if !s.Instance.IsZero() {
		r.Instance = s.Instance.String()
	}
	return encode(r)
}

// lastPart is what stands behind the last slash of a key. No name has one.
func lastPart(key []byte) string {
	s := string(key)
	return s[strings.LastIndexByte(s, '/')+1:]
}

// decodeUser reads a record. Its errors quote nothing of it: there is a hash in it.
func decodeUser(kv *mvccpb.KeyValue) (u user, err error) {
	var r userRecord
	id, err := auth.ParseUserID(lastPart(kv.Key))
	if err != nil || json.Unmarshal(kv.Value, &r) != nil || r.Name == "" || r.Epoch == "" || len(r.Stamp) == 0 {
		return user{}, damage{fmt.Errorf("the record %.128q is not that of a user", kv.Key)}
	}
	return user{
		User: auth.User{
			ID: id, Name: r.Name, Level: r.Level, Disabled: r.Disabled,
			Password: auth.Seal(r.Password), Stamp: auth.Seal(r.Stamp), Created: time.UnixMilli(r.Created).UTC(),
		},
		epoch: r.Epoch, revision: kv.ModRevision,
	}, nil
}

func decodeSession(kv *mvccpb.KeyValue) (s session, err error) {
	var r sessionRecord
	bad := damage{fmt.Errorf("the record %.256q is not that of a session", kv.Key)}
	id, err := auth.ParseSessionID(lastPart(kv.Key))
	if err != nil || json.Unmarshal(kv.Value, &r) != nil || r.Epoch == "" {
		return session{}, bad
	}
	owner, err := auth.ParseUserID(r.User)
	if err != nil {
		return session{}, bad
	}
	s = session{
		Session: auth.Session{
			ID: id, User: owner, UserName: r.Name, Life: time.Duration(r.Life) * time.Millisecond,
			Created: time.UnixMilli(r.Created).UTC(), Seen: time.UnixMilli(r.Seen).UTC(), Expires: time.UnixMilli(r.Expires).UTC(),
		},
		epoch: r.Epoch, revision: kv.ModRevision,
	}
	if r.Instance != "" {
		if s.Instance, err = address.ParseInstanceID(r.Instance); err != nil || s.Instance.IsZero() {
			return session{}, bad
		}
	}
	return s, nil
}

// decodeStore reads the store's own record.
func decodeStore(value []byte) (id auth.StoreID, err error) {
	var r storeRecord
	if json.Unmarshal(value, &r) != nil || r.Is != storeIs {
		return id, errForeign
	}
	if r.Format != format {
		return id, formatError(r.Format)
	}
	if id, err = auth.ParseStoreID(r.ID); err != nil {
		return id, damage{errors.New("its own record is not whole")}
	}
	return id, nil
}

// damage is what is found to be wrong in what etcd holds.
type damage struct{ error }

func (d damage) Unwrap() error { return d.error }

// errForeign: the key of the store's own record holds something else.
var errForeign = errors.New("its prefix is another program's")

// formatError is the format of a store that this version does not know.
type formatError int

func (f formatError) Error() string { return fmt.Sprintf("it is of format %d", int(f)) }
