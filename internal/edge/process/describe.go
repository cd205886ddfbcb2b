package process

import (
	"context"
	"os"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// Describe is what the driver knows of the accelerators that Discover named. What it
// does not know stays empty: parts of a divided GPU, and those of ROUNDHOUSE_GPUS.
func Describe(ctx context.Context, names []string, memory []int64) []selection.GPU {
	if len(names) == 0 {
		return nil
	}
	out := make([]selection.GPU, len(names))
	for i := range out {
		if i < len(memory) {
			out[i].Memory = memory[i]
		}
	}
	if os.Getenv(devicesVariable) != "" {
		return out
	}
	// The capability is asked for by itself: older drivers refuse the question.
	about := csvRows(askDriver(ctx, "--query-gpu=index,uuid,name,pci.device_id", "--format=csv,noheader"), 4)
	capabilities := map[string]string{}
	for _, row := range csvRows(askDriver(ctx, "--query-gpu=uuid,compute_cap", "--format=csv,noheader"), 2) {
		capabilities[row[0]] = known(row[1])
	}
	for _, row := range about {
		i := driverDevice{index: row[0], uuid: row[1]}.among(names)
		if i < 0 {
			continue
		}
		out[i].Name, out[i].Capability = known(row[2]), capabilities[row[1]]
		// 0x233010DE: the device, then its vendor.
		if id := strings.TrimPrefix(strings.ToLower(row[3]), "0x"); len(id) == 8 {
			out[i].PCIDevice, out[i].PCIVendor = id[:4], id[4:]
		}
	}
	return out
}

// known is a field of the driver's answer, "" for one in brackets.
func known(field string) string {
	if strings.HasPrefix(field, "[") {
		return ""
	}
	return field
}
