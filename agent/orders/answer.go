package orders

import (
	"strconv"
	"time"

	"space/agent/fault"
	"space/agent/hook"
)

// Done is how the answer to what was done begins.
const Done = "done "

// AppendFrozen appends the answer to a freeze. Of the hook it says nothing where
// none ran; a status of - is that of one that did not exit by itself.
func AppendFrozen(to []byte, frozen bool, took time.Duration, h hook.Report) []byte {
	to = append(to, Done+"frozen="...)
	to = appendFlag(to, frozen)
	to = append(to, " took_us="...)
	to = strconv.AppendInt(to, took.Microseconds(), 10)
	if h.Ran {
		to = append(to, " hook=1 status="...)
		if h.Status == nil {
			to = append(to, '-')
		} else {
			to = strconv.AppendInt(to, int64(*h.Status), 10)
		}
		to = append(to, " timed_out="...)
		to = appendFlag(to, h.TimedOut)
		to = append(to, " output="...)
		to = appendEscaped(to, h.OutputTail)
	}
	return append(to, '\n')
}

// AppendThawed appends the answer to a thaw.
func AppendThawed(to []byte, frozen bool) []byte {
	to = append(to, Done+"frozen="...)
	return append(appendFlag(to, frozen), '\n')
}

// AppendRefused appends the answer to what was not done.
func AppendRefused(to []byte, err error) []byte {
	f := fault.From(err)
	to = append(to, "refused "...)
	to = strconv.AppendInt(to, int64(f.Status), 10)
	to = append(to, ' ')
	to = append(to, f.Code...)
	to = append(to, ' ')
	return append(appendEscaped(to, f.Detail), '\n')
}

func appendFlag(to []byte, set bool) []byte {
	if set {
		return append(to, '1')
	}
	return append(to, '0')
}

// appendEscaped appends text as one word: what is not visible ASCII, and '%', as
// %XX, which is how URLs have it.
func appendEscaped(to []byte, text string) []byte {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(text); i++ {
		if c := text[i]; c <= ' ' || c >= 0x7f || c == '%' {
			to = append(to, '%', digits[c>>4], digits[c&15])
		} else {
			to = append(to, c)
		}
	}
	return to
}
