package boltstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
)

// What the file holds of a user and of a session, as JSON; times in ms of Unix
// time. The keys are names and ids.
type (
	userRecord struct {
		ID       string        `json:"id"`
		Level    conduit.Level `json:"level"`
		Disabled bool          `json:"disabled,omitempty"`
		Password []byte        `json:"password,omitempty"` //nolint:gosec // a hash; this is where it is kept
		Stamp    []byte        `json:"stamp"`
		Created  int64         `json:"created"`
	}
	sessionRecord struct {
		User     string `json:"user"`
		Name     string `json:"name"`
		Instance string `json:"instance,omitempty"`
		Created  int64  `json:"created"`
		Seen     int64  `json:"seen"`
		Expires  int64  `json:"expires"`
		Life     int64  `json:"life,omitempty"` // ms
	}
)

func encodeUser(u auth.User) ([]byte, error) {
	return json.Marshal(userRecord{
		ID: u.ID.String(), Level: u.Level, Disabled: u.Disabled,
		Password: u.Password.Reveal(), Stamp: u.Stamp.Reveal(), Created: u.Created.UnixMilli(),
	})
}

// decodeUser reads a record. Its errors quote nothing of it: there is a hash in it.
func decodeUser(name, b []byte) (auth.User, error) {
	var r userRecord
	if json.Unmarshal(b, &r) != nil {
		return auth.User{}, fmt.Errorf("the record of the user %.64q does not read", name)
	}
	id, err := auth.ParseUserID(r.ID)
	if err != nil || len(r.Stamp) == 0 {
		return auth.User{}, fmt.Errorf("the record of the user %.64q is not whole", name)
	}
	return auth.User{
		ID: id, Name: string(name), Level: r.Level, Disabled: r.Disabled,
		Password: auth.Seal(r.Password), Stamp: auth.Seal(r.Stamp), Created: time.UnixMilli(r.Created).UTC(),
	}, nil
}

func encodeSession(s auth.Session) ([]byte, error) {
	r := sessionRecord{
		User: s.User.String(), Name: s.UserName,
		Created: s.Created.UnixMilli(), Seen: s.Seen.UnixMilli(), Expires: s.Expires.UnixMilli(), Life: s.Life.Milliseconds(),
	}
	if !s.Instance.IsZero() {
		r.Instance = s.Instance.String()
	}
	return json.Marshal(r)
}

func decodeSession(key, b []byte) (auth.Session, error) {
	var r sessionRecord
	var id auth.SessionID
	if len(key) != len(id) || json.Unmarshal(b, &r) != nil {
		return auth.Session{}, errors.New("the record of a session does not read")
	}
	copy(id[:], key)
	user, err := auth.ParseUserID(r.User)
	if err != nil {
		return auth.Session{}, fmt.Errorf("the record of the session %s is not whole", id)
	}
	s := auth.Session{
		ID: id, User: user, UserName: r.Name, Life: time.Duration(r.Life) * time.Millisecond,
		Created: time.UnixMilli(r.Created).UTC(), Seen: time.UnixMilli(r.Seen).UTC(), Expires: time.UnixMilli(r.Expires).UTC(),
	}
	if r.Instance != "" {
		if s.Instance, err = address.ParseInstanceID(r.Instance); err != nil || s.Instance.IsZero() {
			return auth.Session{}, fmt.Errorf("the record of the session %s is not whole", id)
		}
	}
	return s, nil
}
