package envd

import "net/http"

func (h *Handler) metrics(w http.ResponseWriter, _ *http.Request) error {
	figures, err := h.usage.Measure()
	if err != nil {
		return err
	}
	return writeJSON(w, figures)
}
