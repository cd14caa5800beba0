package envd

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"space/agent/fault"
)

// admitFile lets in who has the token, or a link that somebody with the token
// has signed for just this: path, operation (read or write) and user, as they
// stand in the query, perhaps until some time.
func (h *Handler) admitFile(r *http.Request, query url.Values, operation string) error {
	token := r.Header.Get("X-Access-Token")
	if token != "" || !query.Has("signature") {
		err := h.admit(r)
		if err != nil && token == "" && fault.From(err).Status == http.StatusUnauthorized {
			return unauthorized("missing signature query parameter")
		}
		return err
	}
	secret, err := h.identity.Token()
	if err != nil || secret == "" { // without token everybody may
		return err
	}
	expiration := query.Get("signature_expiration")
	signed := strings.Join([]string{query.Get("path"), operation, query.Get("username"), secret}, ":")
	if expiration != "" {
		signed += ":" + expiration
	}
	sum := sha256.Sum256([]byte(signed))
	want := "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
	given := strings.TrimRight(query.Get("signature"), "=")
	if subtle.ConstantTimeCompare([]byte(want), []byte(given)) != 1 {
		return unauthorized("invalid signature")
	}
	if expiration == "" {
		return nil
	}
	if until, err := strconv.ParseInt(expiration, 10, 64); err != nil || until < time.Now().Unix() {
		return unauthorized("signature is already expired")
	}
	return nil
}

func unauthorized(detail string) *fault.Fault {
	return fault.New(http.StatusUnauthorized, "unauthorized", "%s", detail)
}
