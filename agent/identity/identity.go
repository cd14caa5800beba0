// Package identity is who this sandbox is: what the worker's /init call says,
// and what it changes on the machine. A clone of a memory snapshot wakes up with
// its template's clock, entropy and name; until /init has put that right, and
// nothing else counts as right, no user code may run.
package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"space/agent/fault"
)

// minEntropy is 256 bits, what the kernel's generator is keyed with.
const minEntropy = 32

// Facts are the content of an /init call. It says all there is to say: what it
// leaves out is no longer so.
type Facts struct {
	SandboxID   string            `json:"sandbox_id"`
	TemplateID  string            `json:"template_id"` // what the sandbox was made from, as its user calls it; "" if nobody says
	Hostname    string            `json:"hostname"`
	Env         map[string]string `json:"env"`
	AccessToken string            `json:"access_token"`
	TimeUnixNS  int64             `json:"time_unix_ns"`
	Entropy     []byte            `json:"entropy"`
	CAPEM       string            `json:"ca_pem"` // a root to trust besides the system's own; "" leaves that alone
}

// Identity is safe for concurrent use.

type Identity struct {
	machine Machine

	applying sync.Mutex
	random   generator // with applying held
	mu       sync.RWMutex
	facts    *Facts // nil before the first /init
	token    [sha256.Size]byte
}

// New makes an identity that nobody has told yet.
func New(machine Machine) *Identity { return &Identity{machine: machine} }

var hostnamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)

// Validate checks the fields; env names are the caller's to check.
func (f *Facts) Validate() error {
	switch {
	case f.SandboxID == "" || strings.IndexByte(f.SandboxID, 0) >= 0:
		return fault.Invalid("sandbox_id", "must be given")
	case !hostnamePattern.MatchString(f.Hostname):
		return fault.Invalid("hostname", "must be 1 to 64 letters, digits, '.' or '-'")
	case f.TimeUnixNS <= 0:
		return fault.Invalid("time_unix_ns", "must be the current time in nanoseconds since 1970")
	case len(f.Entropy) < minEntropy:
		return fault.Invalid("entropy", "must be at least %d bytes, base64", minEntropy)
	}
	return nil
}

// Apply makes facts true: first on the machine, then for requests. It may be
// called again. After an error the earlier identity stays in force; warnings
// are what could not be written into /etc.
func (id *Identity) Apply(facts Facts) (warnings []string, err error) {
	id.applying.Lock()
	defer id.applying.Unlock()
	if err := id.machine.tellKernel(&id.random, &facts); err != nil {
		return nil, fault.New(http.StatusInternalServerError, "init_failed", "%v", err).Because(err)
	}
	warnings = append(id.machine.tellFiles(&facts), id.machine.tellRun(&facts)...)
	if before := id.SandboxID(); before != "" && before != facts.SandboxID {
		if err := id.machine.tellBootID(); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	token := sha256.Sum256([]byte(facts.AccessToken))
	facts.Entropy = nil
	facts.Env = id.machine.environment(&facts)
	if err := id.machine.tellEnv(facts.Env); err != nil {
		warnings = append(warnings, err.Error())
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.facts, id.token = &facts, token
	return warnings, nil
}

// Refresh adds entropy and sets the clock, each unless it is empty or 0, and
// leaves the rest: the machine stood still for a while and is nobody else now.
func (id *Identity) Refresh(unixNS int64, entropy []byte) error {
	if unixNS < 0 {
		return fault.Invalid("time_unix_ns", "must be the current time in nanoseconds since 1970, or 0")
	}
	if len(entropy) > 0 && len(entropy) < minEntropy {
		return fault.Invalid("entropy", "must be at least %d bytes, base64", minEntropy)
	}
	id.applying.Lock()
	defer id.applying.Unlock()
	if err := id.machine.refresh(&id.random, unixNS, entropy); err != nil {
		return fault.New(http.StatusInternalServerError, "refresh_failed", "%v", err).Because(err)
	}
	return nil
}

// SandboxID is "" before the first Apply.
func (id *Identity) SandboxID() string {
	id.mu.RLock()
	defer id.mu.RUnlock()
	if id.facts == nil {
		return ""
	}
	return id.facts.SandboxID
}

// Env is the sandbox's environment, below it what tells programs where they are
// and makes them trust the root that came with the facts. It must not be changed.
func (id *Identity) Env() map[string]string {
	id.mu.RLock()
	defer id.mu.RUnlock()
	if id.facts == nil {
		return nil
	}
	return id.facts.Env
}

// Admit checks a request's access token, in constant time.
func (id *Identity) Admit(token string) error {
	id.mu.RLock()
	defer id.mu.RUnlock()
	if id.facts == nil {
		return notInitialised()
	}
	if id.facts.AccessToken == "" {
		return nil
	}
	// Hashed, so that not even the length shows.
	given := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(given[:], id.token[:]) != 1 {
		return fault.New(http.StatusUnauthorized, "unauthorized", "send the sandbox's access token in the header X-Access-Token")
	}
	return nil
}

// Token returns the access token, "" where there is none, for checking what was signed with it.
func (id *Identity) Token() (string, error) {
	id.mu.RLock()
	defer id.mu.RUnlock()
	if id.facts == nil {
		return "", notInitialised()
	}
	return id.facts.AccessToken, nil
}

func notInitialised() error {
	return fault.New(http.StatusServiceUnavailable, "not_initialised", "the sandbox is still being set up; try again shortly")
}

// machineID is what /etc/machine-id says: 32 hexadecimal digits, the same for
// the same sandbox, of no use for guessing another's.
func machineID(sandboxID string) string {
	sum := sha256.Sum256([]byte(sandboxID))
	return hex.EncodeToString(sum[:16])
}
