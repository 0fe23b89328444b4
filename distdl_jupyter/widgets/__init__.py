"""The widgets: a job's live panel, the form that starts one, the sign-in to Azure, the output of cells on ranks."""
