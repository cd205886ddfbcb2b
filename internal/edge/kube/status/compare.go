package status

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// plain is a status in the types that JSON from the API server is read into.
func plain(m map[string]any) (map[string]any, error) {
	text, err := json.Marshal(map[string]any{"status": m})
	if err != nil {
		return nil, err
	}
	var u unstructured.Unstructured
	// The API machinery's own decoder needs a kind; numbers must become int64
	// as there.
	if err := u.UnmarshalJSON(append([]byte(`{"apiVersion":"v1","kind":"x",`), text[1:]...)); err != nil {
		return nil, err
	}
	out, _ := u.Object["status"].(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	shorten(out)
	return out, nil
}

// maxText is the maximum length of a text in a status, in bytes. Messages quote
// manifests, whose texts may be longer than fits into an object; conditions of
// published kinds may have messages of 32 KiB.
const maxText = 8 << 10

// shorten cuts texts that are too long.
func shorten(v any) any {
	switch v := v.(type) {
	case string:
		return cut(v, maxText)
	case []any:
		for i := range v {
			v[i] = shorten(v[i])
		}
	case map[string]any:
		for name, e := range v {
			v[name] = shorten(e)
		}
	}
	return v
}

// cut returns the beginning of a text with at most so many bytes, in whole
// characters.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return excerpt.Of(text, most-len("…"))
}

// ticking are fields that change by themselves; their counts restart with every
// process.
var ticking = []string{"replicaSeconds", "idleSeconds", "startupSeconds"}

// still removes the ticking fields.
func still(status map[string]any) {
	parts, _ := status["components"].([]any)
	for _, p := range parts {
		if m, ok := p.(map[string]any); ok {
			for _, name := range ticking {
				delete(m, name)
			}
		}
	}
}

// keepTimes copies the times of conditions and failures from the present
// status: a new process does not know them.
func keepTimes(want, have map[string]any) {
	for name, v := range want {
		switch v := v.(type) {
		case map[string]any:
			if was, ok := have[name].(map[string]any); ok {
				keepTimes(v, was)
				keepTime(v, was, "time")
			}
		case []any:
			was, _ := have[name].([]any)
			for i, e := range v {
				m, ok := e.(map[string]any)
				if !ok {
					continue
				}
				if name == "conditions" {
					for _, w := range was {
						if w, ok := w.(map[string]any); ok && w["type"] == m["type"] && w["status"] == m["status"] {
							keepIf(m, w, "lastTransitionTime")
						}
					}
				} else if i < len(was) {
					if w, ok := was[i].(map[string]any); ok && reflect.DeepEqual(w["parentRef"], m["parentRef"]) {
						keepTimes(m, w)
					}
				}
			}
		}
	}
}

// keepTime keeps a time when nothing else of the two differs.
func keepTime(want, have map[string]any, name string) {
	if _, timed := want[name]; !timed {
		return
	}
	for k, v := range want {
		if k != name && !reflect.DeepEqual(v, have[k]) {
			return
		}
	}
	keepIf(want, have, name)
}

func keepIf(want, have map[string]any, name string) {
	if t, ok := have[name].(string); ok && want[name] != nil {
		want[name] = t
	}
}

// owned returns the top-level fields of a status that we applied before.
func owned(u *unstructured.Unstructured) map[string]bool {
	out := map[string]bool{}
	for _, f := range u.GetManagedFields() {
		if f.Manager != shape.FieldManager || f.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Status map[string]json.RawMessage `json:"f:status"`
		}
		if json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields) == nil {
			for name := range fields.Status {
				out[strings.TrimPrefix(name, "f:")] = true
			}
		}
	}
	return out
}

// same reports whether a status is as wanted: what is wanted is there, and
// nothing else that we once wrote. The notice of an installation that does not
// serve the object is left out: otherwise each start would write.
func same(want, have map[string]any, owned map[string]bool) bool {
	for name, v := range want {
		stands := have[name]
		if all, ok := stands.([]any); ok && name == "conditions" {
			stands = slices.DeleteFunc(slices.Clone(all), func(c any) bool {
				m, _ := c.(map[string]any)
				return m["type"] == ConditionManaged
			})
		}
		if !reflect.DeepEqual(v, stands) {
			return false
		}
	}
	for name := range owned {
		if _, wanted := want[name]; !wanted && have[name] != nil {
			return false
		}
	}
	return true
}

// notCached reports whether err means that the kind is no longer watched.
func notCached(err error) bool {
	var e *cache.ErrResourceNotCached
	return errors.As(err, &e)
}

// gone returns nil for the error of an object that was deleted or replaced
// meanwhile.
func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) && strings.Contains(err.Error(), "UID") {
		return nil
	}
	return err
}
