// Command matches hosts matches as a game server would, and is the example of an
// element whose work outlives its calls: each match claims units of its instance for
// as long as it lasts. docs/capacity.md is its story.
//
// Element matches, service conduit.example.Matches; all methods are remote and for
// users. Times are in milliseconds.
//
//	method   takes                gives
//	Create   {size, lasts_ms}     the match: {match, address, owner, size, units, players, left_ms}
//	Join     {match, player}      the match
//	Leave    {match, player}      the match
//	Watch    {match}              items {kind, player, reason, match}, until the match has ended; idempotent
//	End      {match}              the match as it ended; for who created it, and superusers
//	List     nothing              {matches} of this instance, the oldest first; idempotent
//	Adopt    a stream of the element's own, between two generations of it
//
// A match of size n, 2 to 64 players, claims n units (times units_per_player). Whoever
// creates it should ask for as many (conduit.WithUnits, call --units): then an instance
// is picked that has room for all of it, and the claim takes over what the call has
// reserved. Who asks for less has 2 reserved, and is refused with no_capacity,
// refused, where the rest is not to be had: the fabric goes on to another instance.
//
// A match is on one instance. Calls that concern it go to its address, which Create
// gives; elsewhere there is no such match (not_found, match_not_found).
//
// It ends when somebody ends it ("asked"), when its time is over ("time"), when nobody
// is in it for a while ("empty"), when its instance has taken back its units at the end
// of a drain ("drained"), and with the element ("stopped"). That is the reason of the
// last item of Watch. The first item is of kind present, later ones joined, left and
// ended.
//
// Of a crash nothing is kept: the host gives back all units, and the matches are gone.
//
// # Hot swap
//
// A process that is replaced lives on until its matches have ended: their claims see to
// that. Calls go to its successor, which has never heard of them. So the old process
// calls the new one (Adopt) when the host tells it that there is one, and the new one
// asks it what it does not know itself. Nobody who plays notices, but for who watches
// across drain.timeout: that call ends with "reloaded", and the next goes on.
//
// Attributes (host.attributes, and those of the deployment):
//
//	units_per_player  units of a player, 1
//	longest           the longest time of a match, 1h; it is the default, too
//	empty             how long a match goes on with nobody in it, 30s
package main
