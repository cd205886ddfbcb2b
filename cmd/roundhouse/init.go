package main

import "github.com/spf13/cobra"

func newInitCommand() *cobra.Command { return &cobra.Command{Use: "init FOLDER"} }
