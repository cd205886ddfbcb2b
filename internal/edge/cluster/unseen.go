package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// ConditionAdopted has the reason why Roundhouse does not manage a manifest
// whose status another project's controller writes. It is in no object's
// status, only in answers to users.
const ConditionAdopted = "Adopted"

// unseen gives services that no controller of ours has ever reconciled a
// condition with the likely reason, in place of the missing status.
func (c *Client) unseen(ctx context.Context, list ...*Service) {
	c.unseenIn(ctx, map[string]*string{}, list...)
}

// unseenIn is unseen with what is known of namespaces: what they adopt, nil where that
// may not be seen.
func (c *Client) unseenIn(ctx context.Context, labels map[string]*string, list ...*Service) {
	for _, s := range list {
		if s.Manifest.Written || s.Revision != nil || len(s.Manifest.Problems) > 0 {
			continue
		}
		d := s.Manifest.Origin.Dialect()
		if d == service.DialectRoundhouse {
			s.say(service.ConditionReady, "Unknown", "NotSeen", "no controller has looked at it yet: `kubectl get pods -A -l app.kubernetes.io/name=roundhouse` says whether one runs")
			continue
		}
		ns := s.Object.Key.Namespace
		if _, asked := labels[ns]; !asked {
			labels[ns] = c.adopted(ctx, ns)
		}
		reason, message := "NotAdopted", notAdopted(d, ns, labels[ns])
		if message == "" {
			reason, message = "NotSeen", fmt.Sprintf("the namespace adopts %s, and no controller has looked at it yet: `kubectl get pods -A -l app.kubernetes.io/name=roundhouse` says whether one runs", d)
		}
		if !s.say(service.ConditionReady, "Unknown", reason, message) {
			s.say(ConditionAdopted, "False", reason, message) // what stands there is another's
		}
	}
}

// say adds a condition unless the status has one of its kind.
func (s *Service) say(kind, status, reason, message string) bool {
	st := &s.Status
	if slices.ContainsFunc(st.Conditions, func(c service.Condition) bool { return c.Type == kind }) {
		return false
	}
	st.Conditions = append(st.Conditions, service.Condition{Type: kind, Status: status, Reason: reason, Message: message})
	return true
}

// notAdopted returns how to have a dialect's manifests adopted in a namespace,
// "" if its label does so already.
func notAdopted(d service.Dialect, namespace string, label *string) string {
	var have []string
	if label != nil {
		have = strings.FieldsFunc(*label, func(r rune) bool { return r == '.' || r == '_' })
	}
	if slices.Contains(have, string(d)) {
		return ""
	}
	unknown := slices.DeleteFunc(slices.Clone(have), func(word string) bool { return slices.Contains(foreign, service.Dialect(word)) })
	have = slices.DeleteFunc(have, func(word string) bool { return slices.Contains(unknown, word) })
	value := strings.Join(append(have, string(d)), ".")
	overwrite, typo := "", ""
	if len(have)+len(unknown) > 0 {
		overwrite = " --overwrite"
	}
	if len(unknown) > 0 {
		typo = fmt.Sprintf(" (the label's %s is no dialect)", strings.Join(unknown, ", "))
	}
	return fmt.Sprintf("no controller of Roundhouse has looked at it%s: `kubectl label namespace %s %s=%s%s` has it adopted here, --adopt %s (the chart's value adopt) everywhere",
		typo, namespace, shape.LabelAdopt, value, overwrite, d)
}

// foreign are what the label may name.
var foreign = []service.Dialect{service.DialectKServe, service.DialectOME, service.DialectSeldon, service.DialectGateway}

// adopted reads a namespace's label; nil where it may not be seen.
func (c *Client) adopted(ctx context.Context, namespace string) *string {
	ns, err := c.get(ctx, namespacesAt, "", namespace)
	if err != nil {
		return nil
	}
	label := ns.GetLabels()[shape.LabelAdopt]
	return &label
}
