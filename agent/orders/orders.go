// Package orders is the form of what the worker says on the orders' port: one
// line, answered by one line. It is for what must be quick in a machine that has
// just woken, where each page that is touched and each instruction that is new
// costs: no HTTP, no JSON, no reflection. Nothing is ignored: whatever is not
// understood is refused.
//
//	freeze reason=pause hook_timeout_ms=0 sync=0 fsfreeze=0 limit_ms=30000
//	done frozen=1 took_us=312
//	done frozen=1 took_us=312 hook=1 status=3 timed_out=0 output=it%20failed%0A
//	thaw reason=pause time_unix_ns=1700000000000000000 entropy=BASE64
//	done frozen=0
//	refused 422 invalid_argument reason:%20must%20be%20...
package orders

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"time"

	"space/agent/fault"
)

// MaxLine bounds an order, its end included, in bytes.
const MaxLine = 4 << 10

const (
	maxSeconds       = 86400
	maxMilliseconds  = maxSeconds * 1000
	defaultHook      = 10 * time.Second
	defaultLimit     = 30 * time.Second
	maxUnixNS        = 1<<63 - 1
	maxShownOfAField = 40
)

// Verb is what is to be done.
type Verb int

// The verbs there are.
const (
	Freeze Verb = iota + 1
	Thaw
)

// Order is a line that was understood. What a freeze has, a thaw has not, and
// the other way round; the reason both have.
type Order struct {
	Verb   Verb
	Reason string // suspend, snapshot, fork or pause; "" only in a thaw that gives none

	HookTimeout time.Duration // 0 runs no hook
	Limit       time.Duration
	Sync        bool
	FSFreeze    bool

	UnixNS  int64  // 0 leaves the clock
	Entropy []byte // empty adds none
}

// known are the bits of fields, for telling that one came twice.
const (
	reasonField = 1 << iota
	hookField
	limitField
	syncField
	fsfreezeField
	timeField
	entropyField
)

// Parse takes a line, without its end, apart.
func Parse(line []byte) (Order, error) {
	verb, rest, more := bytes.Cut(line, space)
	o := Order{HookTimeout: defaultHook, Limit: defaultLimit}
	switch string(verb) {
	case "freeze":
		o.Verb = Freeze
	case "thaw":
		o.Verb = Thaw
	default:
		return Order{}, malformed("an order is freeze or thaw, not " + shown(verb))
	}
	seen := 0
	for more {
		var field []byte
		field, rest, more = bytes.Cut(rest, space)
		name, value, is := bytes.Cut(field, equals)
		if !is {
			return Order{}, malformed("a field is name=value, fields are one space apart: " + shown(field))
		}
		bit, err := o.set(name, value)
		if err != nil {
			return Order{}, err
		}
		if seen&bit != 0 {
			return Order{}, malformed("a field came twice: " + shown(name))
		}
		seen |= bit
	}
	if o.Verb == Freeze && o.Reason == "" {
		return Order{}, fault.Invalid("reason", "must be suspend, snapshot, fork or pause")
	}
	return o, nil
}

var space, equals = []byte(" "), []byte("=")

// set takes one field, and returns its bit.
func (o *Order) set(name, value []byte) (bit int, err error) {
	if string(name) == "reason" {
		return reasonField, o.setReason(value)
	}
	if o.Verb == Thaw {
		switch string(name) {
		case "time_unix_ns":
			n, ok := number(value, maxUnixNS)
			if !ok {
				return 0, fault.Invalid("time_unix_ns", "must be the current time in nanoseconds since 1970, or 0")
			}
			o.UnixNS = n
			return timeField, nil
		case "entropy":
			o.Entropy = make([]byte, base64.StdEncoding.DecodedLen(len(value)))
			n, err := base64.StdEncoding.Decode(o.Entropy, value)
			if err != nil || bytes.IndexByte(value, '\r') >= 0 { // which the decoder skips
				return 0, fault.Invalid("entropy", "must be base64")
			}
			o.Entropy = o.Entropy[:n]
			return entropyField, nil
		}
		return 0, malformed("a thaw has no such field: " + shown(name))
	}
	switch string(name) {
	case "hook_timeout_ms":
		o.HookTimeout, err = duration("hook_timeout_ms", 0, value)
		return hookField, err
	case "limit_ms":
		o.Limit, err = duration("limit_ms", 1, value)
		return limitField, err
	case "sync":
		o.Sync, err = flag("sync", value)
		return syncField, err
	case "fsfreeze":
		o.FSFreeze, err = flag("fsfreeze", value)
		return fsfreezeField, err
	}
	return 0, malformed("a freeze has no such field: " + shown(name))
}

func (o *Order) setReason(value []byte) error {
	for _, reason := range [...]string{"pause", "suspend", "snapshot", "fork"} {
		if string(value) == reason {
			o.Reason = reason
			return nil
		}
	}
	return fault.Invalid("reason", "must be suspend, snapshot, fork or pause")
}

func duration(field string, least int64, value []byte) (time.Duration, error) {
	ms, ok := number(value, maxMilliseconds)
	if !ok || ms < least {
		return 0, fault.Invalid(field, "must be from %d to %d milliseconds", least, maxMilliseconds)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func flag(field string, value []byte) (bool, error) {
	if len(value) != 1 || value[0] != '0' && value[0] != '1' {
		return false, fault.Invalid(field, "must be 0 or 1")
	}
	return value[0] == '1', nil
}

// number reads plain decimal digits, one at least, of a number up to most.
func number(text []byte, most int64) (n int64, ok bool) {
	for _, c := range text {
		digit := int64(c) - '0'
		if digit < 0 || digit > 9 || n > (most-digit)/10 {
			return 0, false
		}
		n = 10*n + digit
	}
	return n, len(text) > 0
}

func shown(text []byte) string {
	if len(text) > maxShownOfAField {
		text = text[:maxShownOfAField]
	}
	return string(text)
}

func malformed(detail string) error {
	return fault.New(http.StatusBadRequest, "bad_order", "%s", detail)
}
