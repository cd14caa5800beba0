// Package command runs the programs a caller asks for. A command is one
// session: its own process group, its own terminal if it wants one, its output
// kept in an output.Log. It outlives the request that started it; whoever comes
// back with its id and an offset misses nothing that is still kept.
//
// The package knows nothing of HTTP. Refusals are faults.
package command

import (
	"math"
	"strings"
	"time"

	"space/agent/fault"
)

// Output limits, in bytes.
const (
	DefaultOutputLimit = 8 << 20
	MaxOutputLimit     = 64 << 20
)

// maxString is the kernel's limit for one argument or variable, with its
// terminating zero (MAX_ARG_STRLEN, 32 pages).
const maxString = 128<<10 - 1

// Size is a terminal's size in characters.
type Size struct {
	Cols, Rows uint16
}

// Spec says what to run. Exactly one of Cmd and Args is given.
type Spec struct {
	Cmd         string   // for the login shell
	Args        []string // or the program and its arguments
	Env         map[string]string
	Cwd         string        // "" is the user's home; a relative one starts there
	User        string        // "" is the default user
	Timeout     time.Duration // 0 is none
	Stdin       bool          // false connects /dev/null
	PTY         *Size         // nil is pipes
	OutputLimit int64         // bytes of output to keep
	Detach      bool          // started for itself, not for the request
	Tag         string        // a second name, chosen by the caller; not unique
}

// Validate checks what can be checked without looking at the machine.
func (s *Spec) Validate() error {
	switch {
	case s.Cmd == "" && len(s.Args) == 0:
		return fault.Invalid("cmd", "give either cmd (a shell command line) or args (a list of strings), not empty")
	case s.Cmd != "" && s.Args != nil:
		return fault.Invalid("args", "give either cmd or args, not both")
	case s.Args != nil && s.Args[0] == "":
		return fault.Invalid("args", "the first one names the program and must not be empty")
	case s.OutputLimit < 1 || s.OutputLimit > MaxOutputLimit:
		return fault.Invalid("output_limit_bytes", "must be from 1 to %d", MaxOutputLimit)
	}
	if err := checkString("cmd", s.Cmd); err != nil {
		return err
	}
	for _, arg := range s.Args {
		if err := checkString("args", arg); err != nil {
			return err
		}
	}
	if err := checkString("cwd", s.Cwd); err != nil {
		return err
	}
	if err := checkString("user", s.User); err != nil {
		return err
	}
	if err := checkString("tag", s.Tag); err != nil {
		return err
	}
	return CheckEnv(s.Env)
}

// CheckEnv refuses names and values that cannot be environment variables.
func CheckEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fault.Invalid("env", "%q is not a name: it must not be empty or contain '=' or NUL", name)
		}
		if err := checkString("env", name+"="+value); err != nil {
			return err
		}
	}
	return nil
}

func checkString(field, value string) error {
	if strings.IndexByte(value, 0) >= 0 {
		return fault.Invalid(field, "must not contain NUL")
	}
	if len(value) > maxString {
		return fault.Invalid(field, "one string is longer than %d bytes, which Linux cannot pass to a program; use a file or stdin", maxString)
	}
	return nil
}

// Seconds turns a number of seconds into a duration; what does not fit is as
// good as for ever and becomes 0, "none".
func Seconds(s float64) time.Duration {
	if s >= float64(math.MaxInt64)/float64(time.Second) {
		return 0
	}
	if d := time.Duration(s * float64(time.Second)); d > 0 {
		return d
	}
	return 1
}
