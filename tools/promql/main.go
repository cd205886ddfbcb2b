// Command promql reads PromQL expressions, one a line, as Prometheus reads
// them, and prints the metrics that each asks for on a line of its own: nothing
// but an error where one cannot be read.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		expr, err := parser.ParseExpr(in.Text())
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", in.Text(), err)
			os.Exit(1)
		}
		var names []string
		for _, selector := range parser.ExtractSelectors(expr) {
			for _, m := range selector {
				if m.Name == labels.MetricName {
					names = append(names, m.Value)
				}
			}
		}
		fmt.Println(strings.Join(names, " "))
	}
	if err := in.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
