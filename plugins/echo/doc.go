// Command echo is the element to try things with: each method does one thing that
// a test, or a person who wants to see the fabric at work, needs.
//
// Element echo, service conduit.example.Echo; dropped into a deployments
// directory as "echo" it is called so:
//
//	conduit-host call '*://echo/echo/conduit.example.Echo' Upper '"hello"'
//
// All methods are remote and open to anonymous callers unless the table says
// otherwise. "items" is a stream down, "upload" a stream up. Times are in
// milliseconds.
//
//	method          takes                                  gives
//	Echo            bytes                                  the same bytes; idempotent
//	EchoJSON        any JSON                               the same JSON; idempotent
//	Upper           string                                 the string in capitals
//	Delay           {ms, ignore_context}                   {waited_ms} after that time
//	Hurried         {ms, ignore_context}                   as Delay, with a Timeout of 50 ms of its own
//	Heavy           {ms, ignore_context}                   as Delay, and costs 10 units
//	Claim           {units}                                {id, units} of a claim, held until Release or the end
//	HeavyClaim      {units}                                as Claim, and costs 10 units, which the claim takes over
//	Release         id; 0 = all                            how many claims it gave back
//	Count           n                                      items 0 to n-1 as fast as they are taken
//	CountSlow       {n, interval_ms}                       items 0 to n-1, the first at once, then one each interval
//	Parts           n                                      n messages each to parts 1 and 2, then n
//	Big             {bytes}                                that many bytes
//	BigItems        {bytes, items}                         items of that many bytes
//	Nothing         nothing                                nothing
//	Sum             upload of integers                     their sum
//	Size            upload of bytes                        {items, bytes}
//	Chat            upload of any JSON                     each item back at once
//	Fail            {code, reason, message, after}         the error, after that many items
//	RefuseMe        {reason, retry_after_ms, after}        a refusal, after that many items
//	Panic           string                                 a panic in the handler
//	PanicGoroutine  string                                 a panic beside the handler: the process dies
//	WhoAmI          nothing                                the caller as the element sees it
//	Where           {ms}                                   {pid} of the process that answers, after that time; idempotent
//	Chain           {address, method, request, as_self, after_ms}    the answer of the method that it calls, after that time
//	Print           {stdout, stderr}                       nothing; prints both, a line each
//	Log             {level, message}                       nothing; logs
//	Flood           {lines, bytes}                         nothing; lines of that many bytes on stderr
//	Env             nothing                                {env, args, dir, pid, descriptors, attributes, data_dir}; of sensitive attributes no values
//	Events          name; "" = all                         items {name, sequence, present, deployment, ...} for as long as the call lasts; for user and above
//	Exit            {code}                                 nothing: the process exits
//	Fork            {seconds}                              {pid} of a child that sleeps and outlives the call
//	Hidden          nothing                                is not remote: no call reaches it
//	UserOnly        nothing                                the caller's level; for user and above
//	SuperuserOnly   nothing                                the caller's level; for superuser and above
//	Old             nothing                                nothing; deprecated
//
// The service conduit.example.Echo#loud is a second one of the type, with Upper
// alone, which adds an exclamation mark. conduit.conformance.v1.Conformance is that of
// package pluginapi/conformance, which checks of plugins call.
//
// Attributes (host.attributes, and those of the deployment) change how it behaves as a
// whole. One that is not set is looked for in the environment, as in ECHO_STOP_MS, for
// who embeds the host and declares variables (host.Options.Env): of the variables that
// conduit-host itself was started with, none of these reaches a plugin.
//
//	start_ms      how long Start takes
//	start_error   Start fails with this text
//	stop_ms       how long Stop takes
//	health        "degraded" or "unhealthy"
//	warning       Configure warns with this text
//	motto         nothing; "make it so" unless it is set
package main
