"""The widgets: the live panel of a job, the launch form, the sign-in to Azure, and the output of cells on ranks."""
