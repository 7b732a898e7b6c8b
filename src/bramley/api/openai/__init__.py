"""OpenAI's protocol (https://platform.openai.com/docs/api-reference)."""
